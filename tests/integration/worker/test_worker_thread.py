"""The worker with handlers in its own threads."""

import asyncio
import time
from threading import Event, Lock
from typing import Any

import pytest

from holdfast.errors import ConfigError, LeaseLost
from holdfast.events import (
    Completed,
    DeadLettered,
    MessageLeaseLost,
    PollFailed,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from holdfast.queue.message import AnyMessage
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.worker.outcome import Done, Reject, Retry
from holdfast.worker.worker import Worker, WorkerReport
from support.leftovers import Leftovers
from support.waiting import wait_until
from support.workers.running import TestQueue, pass_a_renewal, run_until_empty, running


@pytest.mark.requirement("R001-001", "R001-003", "R003-008")
def test_everything_pushed_is_handled_once_and_acked() -> None:
    queue = TestQueue()
    queue.push_ids(*(f"m{number}" for number in range(100)))
    handled: list[str] = []
    report = run_until_empty(Worker(queue, lambda message: handled.append(message.id)))
    assert sorted(handled) == sorted(f"m{number}" for number in range(100))
    assert report == WorkerReport(100, 0, 0, 0, 0)
    assert queue.stats().completed == 100
    assert len(queue.seen.of(Completed)) == 100
    assert queue.seen.of(WorkerStarted) == [WorkerStarted("memory", 1, "thread")]


@pytest.mark.requirement("R003-032")
def test_a_worker_that_finds_no_message_reports_nothing_about_it() -> None:
    queue = TestQueue()
    run_until_empty(Worker(queue, lambda message: None))
    kinds = [type(event) for event in queue.seen.events]
    assert kinds == [WorkerStarted, WorkerStopping, WorkerStopped]


@pytest.mark.parametrize("result", [None, Done()])
def test_returning_none_or_done_completes_the_message(result: Any) -> None:
    queue = TestQueue()
    queue.push_ids("m")
    assert run_until_empty(Worker(queue, lambda message: result)).completed == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), "ValueError: no"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_any_exception_of_a_handler_is_a_failed_attempt_and_finally_a_dead_letter(
    error: BaseException, reason: str
) -> None:
    def handle(message: Any) -> None:
        raise error

    queue = TestQueue(max_attempts=3)
    queue.push_ids("m", "n")
    report = run_until_empty(Worker(queue, handle))
    assert report == WorkerReport(0, 4, 2, 0, 0)
    [first] = queue.find("m")
    assert first.reason == f"failed 3 times, last: {reason}"
    assert [past.outcome for past in first.past] == ["retried", "retried", "dead-lettered"]
    assert "in handle" in (first.past[-1].detail or "")


def test_a_requested_retry_comes_back_after_its_delay() -> None:
    times: list[float] = []

    def handle(message: Any) -> Any:
        times.append(time.monotonic())
        return Retry(0.3, "soon") if len(times) == 1 else None

    queue = TestQueue()
    queue.push_ids("m")
    report = run_until_empty(Worker(queue, handle))
    assert report == WorkerReport(1, 1, 0, 0, 0)
    assert times[1] - times[0] >= 0.3


def test_an_invalid_result_is_dead_lettered_with_its_type() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    report = run_until_empty(Worker(queue, lambda message: {"secret": 1}))
    assert report.dead_lettered == 1
    reason = next(queue.dead_letters()).reason or ""
    assert "dict" in reason
    assert "secret" not in reason


def test_the_report_counts_messages_that_poll_dead_lettered() -> None:
    """No handler sees malformed or exhausted messages, but the report must count them."""
    queue = TestQueue(max_attempts=1)
    queue.push_ids("exhausted", "good")
    queue.nack(queue.poll()[0], delay_seconds=0.0)
    report = run_until_empty(Worker(queue, lambda message: None))
    assert report == WorkerReport(
        completed=1, retried=0, dead_lettered=1, given_back=0, abandoned=0
    )
    [event] = queue.seen.of(DeadLettered)
    assert event.message_id == "exhausted"
    assert run_until_empty(Worker(queue, lambda message: None)).dead_lettered == 0


def test_a_reject_is_a_dead_letter_at_once() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    report = run_until_empty(Worker(queue, lambda message: Reject("hopeless")))
    assert report == WorkerReport(0, 0, 1, 0, 0)


class Crowd:
    """A handler that counts how many calls run at once."""

    def __init__(self) -> None:
        self.most = self.inside = 0
        self._lock = Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.002)
        with self._lock:
            self.inside -= 1


def test_without_prefetch_no_more_are_claimed_at_once_than_there_are_slots() -> None:
    queue, crowd = TestQueue(), Crowd()
    queue.push_ids(*(f"m{number}" for number in range(300)))
    report = run_until_empty(Worker(queue, crowd, concurrency=4, prefetch=0))
    assert report.completed == 300
    assert crowd.most == 4
    assert queue.most_out <= 4
    assert queue.most_asked <= 4  # no more were requested either


def test_work_that_takes_many_leases_is_renewed_and_done_once() -> None:
    clock = ManualClock()
    queue = TestQueue(clock=clock)
    queue.push_ids("m")
    calls: list[int] = []

    def handle(message: Any, ctx: Any) -> None:
        calls.append(ctx.attempt)
        for _ in range(9):  # more than three leases
            pass_a_renewal(queue, clock)
        ctx.raise_if_lost()

    report = run_until_empty(Worker(queue, handle, clock=clock), clock)
    assert report == WorkerReport(1, 0, 0, 0, 0)
    assert calls == [1]


def test_the_context_shows_the_attempt_and_stores_a_checkpoint_for_the_next() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    contexts: list[Any] = []

    def handle(message: Any, ctx: Any) -> Any:
        contexts.append(
            (ctx.message_id, ctx.attempt, ctx.fence, ctx.checkpoint, message.attempts)
        )
        ctx.beat(progress=0.5, checkpoint={"step": ctx.attempt})
        return Retry(0.0) if ctx.attempt == 1 else None

    run_until_empty(Worker(queue, handle))
    assert contexts == [("m", 1, 1, None, 1), ("m", 2, 2, {"step": 1}, 2)]


def test_a_first_attempt_does_not_load_a_checkpoint() -> None:
    class Counting(TestQueue):
        loads = 0

        def load_checkpoint(self, message: Any) -> Any:
            self.loads += 1
            return super().load_checkpoint(message)

    queue = Counting()
    queue.push_ids("m")
    run_until_empty(Worker(queue, lambda message, ctx: ctx.checkpoint))
    assert queue.loads == 0


def test_a_lost_lease_reaches_the_handler_and_nothing_is_settled() -> None:
    queue = TestQueue(lease_seconds=3.0)
    queue.push_ids("m")
    steps: list[str] = []

    def handle(message: Any, ctx: Any) -> None:
        assert ctx.lost.wait(60)
        with pytest.raises(LeaseLost):
            ctx.raise_if_lost()
        with pytest.raises(LeaseLost):
            ctx.beat()
        steps.append("lost")

    with running(Worker(queue, handle)) as run:
        wait_until(lambda: "claim m" in queue.log)
        queue.refusing.set()
        wait_until(lambda: steps)
        report = run.stop()
    assert report.abandoned >= 1
    assert report.completed == 0
    assert not {"ack m", "nack m", "release m", "dead_letter m"} & set(queue.log)
    assert queue.seen.of(MessageLeaseLost)[0].reason == "another worker has it"


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"stall_seconds": 0.3}, "stalled: no beat for 0.3 s"),
        ({"timeout_seconds": 0.3}, "timed out after 0.3 s"),
    ],
)
def test_a_hung_handler_loses_its_lease_and_the_work_goes_to_another_slot(
    limits: dict[str, float], reason: str
) -> None:
    queue = TestQueue(lease_seconds=1.0)
    queue.push_ids("m")
    released, lost_events = Event(), []

    def handle(message: Any, ctx: Any) -> None:
        if ctx.attempt == 1:
            lost_events.append(ctx.lost)
            released.wait(60)

    worker = Worker(queue, handle, concurrency=2, **limits)  # type: ignore[arg-type]
    try:
        with running(worker) as run:
            wait_until(lambda: queue.stats().completed == 1)
            assert lost_events[0].is_set()
            assert queue.seen.of(MessageLeaseLost)[0].reason == reason
            assert not run.ended()
    finally:
        released.set()


def test_a_beating_handler_is_not_stalled() -> None:
    clock = ManualClock()
    queue = TestQueue(clock=clock)
    queue.push_ids("m")

    def handle(message: Any, ctx: Any) -> None:
        for _ in range(9):
            pass_a_renewal(queue, clock)
            ctx.beat()

    worker = Worker(queue, handle, stall_seconds=25, clock=clock)
    report = run_until_empty(worker, clock)
    assert report == WorkerReport(1, 0, 0, 0, 0)


def test_a_handler_that_never_returns_keeps_neither_the_run_nor_the_stop_waiting() -> None:
    queue = TestQueue(lease_seconds=0.5, max_attempts=2)
    queue.push_ids("m")
    released = Event()

    def handle(message: Any, ctx: Any) -> None:
        if ctx.attempt == 1:
            released.wait(60)

    worker = Worker(
        queue,
        handle,
        concurrency=2,
        stall_seconds=0.2,
        kill_grace_seconds=0.1,
        drain_seconds=1000,
    )
    try:
        report = run_until_empty(worker)
        assert report == WorkerReport(1, 0, 0, 0, 1)
    finally:
        released.set()


def test_an_async_handler_runs_in_a_thread_too_and_is_cancelled_when_lost() -> None:
    queue = TestQueue(lease_seconds=0.6)
    queue.push_ids("m")
    steps: list[str] = []

    async def handle(message: Any, ctx: Any) -> None:
        steps.append("begun")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    with running(Worker(queue, handle)):
        wait_until(lambda: steps)
        queue.refusing.set()
        wait_until(lambda: steps[:2] == ["begun", "cancelled"])
    assert not {"ack m", "nack m", "dead_letter m"} & set(queue.log)


def test_an_unavailable_queue_is_polled_again_and_the_failure_is_reported() -> None:
    queue = TestQueue()
    queue.poll_errors = [OSError("disk away"), RuntimeError("what?")]
    queue.push_ids("m")
    assert run_until_empty(Worker(queue, lambda message: None)).completed == 1
    errors = [event.error for event in queue.seen.of(PollFailed)]
    assert errors == ["OSError: disk away", "RuntimeError: what?"]


def test_until_empty_waits_for_delayed_messages() -> None:
    queue = TestQueue()
    queue.push(AnyMessage(id="later"), delay_seconds=0.8)
    assert run_until_empty(Worker(queue, lambda message: None)).completed == 1


def test_until_empty_waits_until_lost_messages_come_back() -> None:
    queue = TestQueue(lease_seconds=0.6)
    queue.push_ids("lost")

    def handle(message: Any, ctx: Any) -> None:
        if ctx.attempt == 1:
            queue.refusing.set()
            ctx.lost.wait(60)
            queue.refusing.clear()

    report = run_until_empty(Worker(queue, handle))
    assert report == WorkerReport(1, 0, 0, 0, 1)


def test_until_empty_of_an_empty_queue_ends() -> None:
    assert run_until_empty(Worker(TestQueue(), print)) == WorkerReport(0, 0, 0, 0, 0)


def test_until_empty_does_not_wait_for_messages_of_other_workers() -> None:
    queue = TestQueue(lease_seconds=60)
    queue.push_ids("theirs")
    other = MemoryQueue(AnyMessage, shared_with=queue, lease_seconds=60)
    assert len(other.poll()) == 1
    assert run_until_empty(Worker(queue, print)) == WorkerReport(0, 0, 0, 0, 0)


@pytest.mark.requirement("R003-034")
def test_ten_thousand_beats_are_cheap() -> None:
    queue = TestQueue()
    queue.push_ids("m")

    def handle(message: Any, ctx: Any) -> None:
        for step in range(10_000):
            ctx.beat(step / 10_000)

    assert run_until_empty(Worker(queue, handle, stall_seconds=30)).completed == 1


def test_no_thread_is_left_after_many_runs() -> None:
    leftovers = Leftovers()
    for _ in range(8):
        queue = TestQueue()
        queue.push_ids("m", "n", "o")
        assert (
            run_until_empty(Worker(queue, lambda message: None, concurrency=3)).completed == 3
        )
    wait_until(lambda: not leftovers.threads)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"concurrency": 0}, "concurrency must be above 0"),
        ({"stall_seconds": 0}, "stall_seconds must be above 0"),
        ({"timeout_seconds": -1}, "timeout_seconds must be above 0"),
        ({"isolation": "fork"}, "isolation must be thread, process or async, not 'fork'"),
        ({"isolation": "async"}, "would block the event loop"),
        ({"isolation": "process"}, "top of an importable module"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_claimed(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        Worker(TestQueue(), lambda message: None, **settings)


def test_a_handler_with_the_wrong_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        Worker(TestQueue(), lambda: None)
