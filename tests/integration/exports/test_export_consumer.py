"""Job messages through a real worker and queue: acked, retried, dead-lettered, given back.

(JB-32, JB-37, JB-39).
"""

import json
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from holdfast.events import Event, Events
from holdfast.exports.consumer import ExportJobConsumer
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.model import ExportJob, JobStatus
from holdfast.exports.request import JobRequest
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.exports.tracker import JobTracker
from holdfast.lease.backoff import Backoff
from holdfast.queue.message import AnyMessage
from holdfast.testing import MemoryQueue
from holdfast.worker.worker import Worker
from support.exports.simulated_step_functions import SimulatedStepFunctions, TokenState
from support.exports.stage import make_runner
from support.waiting import wait_until

CANARY = "secret-canary"


class FlakyJobs(MemoryJobs):
    """A store that can be unavailable."""

    failing_calls = 0  # how many calls it still refuses

    def save(self, job: ExportJob) -> None:
        if self.failing_calls > 0:
            self.failing_calls -= 1
            raise StoreUnavailable("not now")
        super().save(job)


class Place:
    """A worker over a queue, a store and a simulated Step Functions."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.queue = MemoryQueue(AnyMessage, max_attempts=2, events=Events(self.events.append))
        self.queue.backoff = Backoff(first_seconds=0.001, max_seconds=0.002)
        self.step_functions = SimulatedStepFunctions()
        self.jobs = FlakyJobs(clock=self.queue.clock)
        self.tracker = JobTracker(self.jobs, self.step_functions)
        runner, self.dispatcher, self.pool = make_runner(
            self.jobs,
            self.tracker,
            self.step_functions,
            listing=self.listing,
            drain_seconds=0.2,
        )
        consumer = ExportJobConsumer(
            runner, self.tracker, self.step_functions, max_attempts=self.queue.max_attempts
        )
        self.worker = Worker(self.queue, consumer, concurrency=2)

    def listing(self, request: JobRequest) -> Iterator[Any]:
        """Fail with a text that must not leak."""
        raise RuntimeError(CANARY)

    def push(self, **fields: Any) -> AnyMessage:
        """Push a message with these fields."""
        message = AnyMessage.model_validate(fields)
        self.queue.push(message)
        return message

    def read_job(self, job_id: str = "abc-123") -> ExportJob:
        """Return the stored job."""
        job = self.jobs.find_by_id(job_id)
        assert job is not None
        return job


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    printed = repr(place.events) + json.dumps([str(event) for event in place.events])
    assert CANARY not in printed
    assert "simulated-task" not in printed


def make_message(**more: Any) -> dict[str, Any]:
    """Make the seed's message with more fields."""
    return {"jobId": "abc-123", "exportId": "export-456", "userId": "user-789", **more}


URLS = [{"url": "https://files.example/a"}, {"url": "https://files.example/b", "key": "b.pdf"}]


@pytest.mark.requirement("R004-022", "R004-078", "R004-079")
def test_a_job_message_of_the_seeds_form_is_done_and_acked(place: Place) -> None:
    token = place.step_functions.open()
    place.push(**make_message(taskToken=token.reveal(), tasks=URLS))
    report = place.worker.run(until_empty=True)
    assert report.completed == 1
    assert place.read_job().status is JobStatus.COMPLETED
    assert place.step_functions.state(token) is TokenState.CLOSED


@pytest.mark.requirement("R004-080")
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
def test_an_invalid_message_fails_its_token_and_is_dead_lettered(
    place: Place, wrong: dict[str, Any]
) -> None:
    """(JB-37)"""
    token = place.step_functions.open()
    place.push(**{**make_message(taskToken=token.reveal(), tasks=URLS), **wrong})
    place.worker.run(until_empty=True)
    (callback,) = place.step_functions.accepted
    assert (callback.kind, callback.error) == ("failure", "InvalidJobMessage")
    (dead,) = place.queue.dead_letters()
    assert dead.reason
    assert "simulated-task" not in dead.reason
    assert place.jobs.find_by_id("abc-123") is None


def test_an_invalid_message_is_retried_until_its_token_is_failed(place: Place) -> None:
    token = place.step_functions.open()
    place.step_functions.throttle(1)
    place.push(jobId="abc-123", taskToken=token.reveal())
    place.worker.run(until_empty=True)
    assert len(place.step_functions.accepted) == 1
    assert place.queue.stats().failed == 1


def test_an_invalid_message_without_a_token_is_dead_lettered(place: Place) -> None:
    place.push(hello="world")
    place.worker.run(until_empty=True)
    assert place.queue.stats().failed == 1
    assert place.step_functions.calls == 0


def test_an_unavailable_store_costs_an_attempt_and_no_job(place: Place) -> None:
    token = place.step_functions.open()
    place.jobs.failing_calls = 1
    place.push(**make_message(taskToken=token.reveal(), tasks=URLS))
    place.worker.run(until_empty=True)
    assert [type(event).__name__ for event in place.events].count("Retried") == 1
    assert place.read_job().status is JobStatus.COMPLETED


def test_the_last_attempt_leaves_no_job_waiting(place: Place) -> None:
    """The message is dead-lettered, and the waiting execution is notified."""
    token = place.step_functions.open()
    place.push(**make_message(taskToken=token.reveal()))
    place.worker.run(until_empty=True)
    assert place.queue.stats().failed == 1
    job = place.read_job()
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.code == "JobAbandoned"
    assert place.step_functions.state(token) is TokenState.CLOSED


def test_the_last_attempt_of_a_second_message_does_not_fail_a_job_that_runs(
    place: Place,
) -> None:
    """Step Functions refused to tell whether the new token is open."""
    token, new_token = place.step_functions.open(), place.step_functions.open()
    place.pool.do = lambda task: None
    place.push(**make_message(taskToken=token.reveal(), tasks=URLS))
    run = Thread(target=place.worker.run)
    run.start()
    wait_until(lambda: place.pool.taken)
    place.step_functions.down = True
    place.push(**make_message(taskToken=new_token.reveal(), tasks=URLS))
    wait_until(lambda: place.queue.stats().failed == 1)
    place.worker.stop()
    run.join(30)
    job = place.read_job()
    assert (job.is_decided, job.task_token) == (False, token)


def test_a_stopping_worker_gives_the_job_back_without_counting_the_attempt(
    place: Place,
) -> None:
    """Another worker goes on with it (JB-27)."""
    place.pool.do = lambda task: None
    place.push(**make_message(tasks=URLS))
    run = Thread(target=place.worker.run)
    run.start()
    wait_until(lambda: place.pool.taken)
    place.worker.stop()
    run.join(30)
    assert place.pool.cancelled == ["abc-123"]
    (message,) = place.queue.poll()
    assert message.attempts == 1
    assert [type(event).__name__ for event in place.events].count("GivenBack") == 1
    assert place.read_job().status is JobStatus.DOWNLOADING


@pytest.mark.requirement("R004-106")
def test_results_wait_for_a_store_that_does_not_respond(place: Place) -> None:
    """They are counted when it responds again (JB-32)."""
    failures = iter([True, True])
    record = place.jobs.record_results

    def fail_twice(*args: Any) -> int:
        if next(failures, False):
            raise StoreUnavailable("not now")
        return record(*args)

    place.jobs.record_results = fail_twice  # type: ignore[method-assign]
    place.push(**make_message(tasks=URLS))
    place.worker.run(until_empty=True)
    assert place.read_job().status is JobStatus.COMPLETED
    assert len(place.pool.taken) == 2


def test_two_jobs_take_turns_at_the_pool(place: Place) -> None:
    order: list[str] = []
    woken: list[int] = []  # a job wakes the pool when it has read its tasks
    place.pool.wake = lambda: woken.append(1)  # type: ignore[method-assign]
    many = [{"url": f"https://files.example/{n}"} for n in range(5)]
    place.push(**make_message(tasks=many))
    place.push(**{**make_message(tasks=many), "jobId": "other"})
    run = Thread(target=place.worker.run)
    run.start()
    wait_until(lambda: len(woken) >= 2)
    wait_until(lambda: _take_all(place, order, 10))
    place.worker.stop_now()
    run.join(30)
    assert [order.count(job_id) for job_id in ("abc-123", "other")] == [5, 5]
    assert len(set(order[:2])) == 2


def _take_all(place: Place, order: list[str], wanted: int) -> bool:
    while (task := place.dispatcher.take()) is not None:
        order.append(task.job_id)
    return len(order) >= wanted
