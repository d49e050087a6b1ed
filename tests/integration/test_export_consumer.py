"""Job messages through a real worker and queue: what is acked, retried, buried, given back.

R004-022, R004-077…081; JB-32, 37, 39; D-23.
"""

import json
from collections.abc import Callable, Iterator
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest

from holdfast.core.backoff import Backoff
from holdfast.core.events import Event, Events
from holdfast.core.queue.message import AnyMessage
from holdfast.core.worker.worker import Worker
from holdfast.jobs.consumer import ExportJobConsumer
from holdfast.jobs.dispatcher import TaskDispatcher
from holdfast.jobs.errors import StoreUnavailable
from holdfast.jobs.model import ExportJob, JobStatus
from holdfast.jobs.request import JobRequest
from holdfast.jobs.runner import JobRunner
from holdfast.jobs.tracker import JobTracker
from holdfast.testing import MemoryQueue
from holdfast.testing.memory_jobs import JobMemory, MemoryJobs
from holdfast.testing.stepfunctions import SimulatedStepFunctions, TokenState
from jobs.inline_pool import InlinePool

CANARY = "secret-canary"


class Silent:
    def beat_now(self, job: ExportJob) -> None: ...

    def forget(self, job_id: str) -> None: ...


class Flaky(MemoryJobs):
    """A store that can be away."""

    away_calls = 0  # how many calls it still refuses

    def save(self, job: ExportJob) -> None:
        if self.away_calls > 0:
            self.away_calls -= 1
            raise StoreUnavailable("the store is away")
        super().save(job)


class Place:
    def __init__(self) -> None:
        self.told: list[Event] = []
        self.queue = MemoryQueue(AnyMessage, max_attempts=2, events=Events(self.told.append))
        self.queue.backoff = Backoff(first_seconds=0.001, max_seconds=0.002)
        self.step_functions = SimulatedStepFunctions()
        self.jobs = Flaky(JobMemory(), self.queue.clock)
        self.tracker = JobTracker(self.jobs, self.step_functions)
        self.dispatcher = TaskDispatcher(
            self.jobs, self.tracker, lambda task: {}, drain_seconds=0.2
        )
        self.pool = InlinePool(self.dispatcher)
        runner = JobRunner(
            self.jobs,
            self.tracker,
            self.dispatcher,
            Silent(),
            self.listing,
            self.step_functions,
        )
        consumer = ExportJobConsumer(
            runner, self.tracker, self.step_functions, max_attempts=self.queue.max_attempts
        )
        self.worker = Worker(self.queue, consumer, concurrency=2)

    def listing(self, request: JobRequest) -> Iterator[Any]:
        raise RuntimeError(CANARY)

    def push(self, **fields: Any) -> AnyMessage:
        message = AnyMessage.model_validate(fields)
        self.queue.push(message)
        return message

    def job(self, job_id: str = "abc-123") -> ExportJob:
        job = self.jobs.find_by_id(job_id)
        assert job is not None
        return job


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    said = repr(place.told) + json.dumps([str(event) for event in place.told])
    assert CANARY not in said
    assert "simulated-task" not in said


def seed(**more: Any) -> dict[str, Any]:
    return {"jobId": "abc-123", "exportId": "export-456", "userId": "user-789", **more}


URLS = [{"url": "https://files.example/a"}, {"url": "https://files.example/b", "key": "b.pdf"}]


def wait_for(condition: Callable[[], bool]) -> None:
    until = monotonic() + 30
    while not condition():
        assert monotonic() < until, "it never happened"
        sleep(0.005)


def test_a_job_message_of_the_seeds_form_is_done_and_acked(place: Place) -> None:
    token = place.step_functions.open()
    place.push(**seed(taskToken=token.reveal(), tasks=URLS))
    report = place.worker.run(until_empty=True)
    assert report.completed == 1
    assert place.job().status is JobStatus.COMPLETED
    assert place.step_functions.state(token) is TokenState.CLOSED


@pytest.mark.parametrize(
    "wrong",
    [
        {"jobId": "../../etc"},
        {"jobId": None},
        {"exportId": ""},
        {"tasks": [{"key": "no-url"}]},
        {"tasks": [{"url": "https://x.example", "checksum": "crc32:00"}]},
        {"tasks": "all of them"},
    ],
)
def test_an_invalid_message_answers_its_token_and_is_a_dead_letter(
    place: Place, wrong: dict[str, Any]
) -> None:
    """JB-37."""
    token = place.step_functions.open()
    place.push(**{**seed(taskToken=token.reveal(), tasks=URLS), **wrong})
    place.worker.run(until_empty=True)
    (answer,) = place.step_functions.accepted
    assert (answer.kind, answer.error) == ("failure", "InvalidJobMessage")
    (dead,) = place.queue.dead_letters()
    assert dead.reason
    assert "simulated-task" not in dead.reason
    assert place.jobs.find_by_id("abc-123") is None


def test_an_invalid_message_is_kept_until_its_token_could_be_answered(place: Place) -> None:
    token = place.step_functions.open()
    place.step_functions.throttle(1)
    place.push(jobId="abc-123", taskToken=token.reveal())
    place.worker.run(until_empty=True)
    assert len(place.step_functions.accepted) == 1
    assert place.queue.stats().failed == 1


def test_an_invalid_message_without_a_token_is_a_dead_letter(place: Place) -> None:
    place.push(hello="world")
    place.worker.run(until_empty=True)
    assert place.queue.stats().failed == 1
    assert place.step_functions.calls == 0


def test_a_store_that_is_away_costs_an_attempt_and_no_job(place: Place) -> None:
    token = place.step_functions.open()
    place.jobs.away_calls = 1
    place.push(**seed(taskToken=token.reveal(), tasks=URLS))
    place.worker.run(until_empty=True)
    assert [type(event).__name__ for event in place.told].count("Retried") == 1
    assert place.job().status is JobStatus.COMPLETED


def test_the_last_attempt_leaves_no_job_waiting(place: Place) -> None:
    """The message becomes a dead letter; whoever waits for the job is told."""
    token = place.step_functions.open()
    place.push(**seed(taskToken=token.reveal()))
    place.worker.run(until_empty=True)
    assert place.queue.stats().failed == 1
    job = place.job()
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code == "JobAbandoned"
    assert place.step_functions.state(token) is TokenState.CLOSED


def test_a_stopping_worker_gives_the_job_back_uncharged(place: Place) -> None:
    """JB-27: another one goes on with it."""
    place.pool.do = lambda task: None
    place.push(**seed(tasks=URLS))
    run = Thread(target=place.worker.run)
    run.start()
    wait_for(lambda: bool(place.pool.taken))
    place.worker.stop()
    run.join(30)
    assert place.pool.cancelled == ["abc-123"]
    (message,) = place.queue.poll()
    assert message.attempts == 1
    assert [type(event).__name__ for event in place.told].count("GivenBack") == 1
    assert place.job().status is JobStatus.DOWNLOADING


def test_results_wait_for_a_store_that_does_not_answer(place: Place) -> None:
    """JB-32: they are counted once it does."""
    failures = iter([True, True])
    record = place.jobs.record_results

    def flaky(*args: Any) -> int:
        if next(failures, False):
            raise StoreUnavailable("not now")
        return record(*args)

    place.jobs.record_results = flaky  # type: ignore[method-assign]
    place.push(**seed(tasks=URLS))
    place.worker.run(until_empty=True)
    assert place.job().status is JobStatus.COMPLETED
    assert len(place.pool.taken) == 2


def test_two_jobs_take_turns_at_the_pool(place: Place) -> None:
    order: list[str] = []
    woken: list[int] = []  # a job wakes the pool when it has read its tasks
    place.pool.wake = lambda: woken.append(1)  # type: ignore[method-assign]
    many = [{"url": f"https://files.example/{n}"} for n in range(5)]
    place.push(**seed(tasks=many))
    place.push(**{**seed(tasks=many), "jobId": "other"})
    run = Thread(target=place.worker.run)
    run.start()
    wait_for(lambda: len(woken) >= 2)
    wait_for(lambda: _all_taken(place, order, 10))
    place.worker.stop_now()
    run.join(30)
    assert [order.count(job_id) for job_id in ("abc-123", "other")] == [5, 5]
    assert len(set(order[:2])) == 2


def _all_taken(place: Place, order: list[str], wanted: int) -> bool:
    while (task := place.dispatcher.take()) is not None:
        order.append(task.job_id)
    return len(order) >= wanted
