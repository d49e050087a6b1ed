"""The worker with coroutines on one event loop."""

import asyncio
from threading import Event
from typing import Any

import pytest

from holdfast.events import MessageLeaseLost
from holdfast.lease.lease import LeaseState
from holdfast.testing import ManualClock
from holdfast.worker.outcome import Reject, Retry
from holdfast.worker.worker import Worker, WorkerReport
from support.leftovers import Leftovers
from support.waiting import wait_until
from support.workers.running import TestQueue, pass_a_renewal, run_until_empty, running


def async_worker(queue: TestQueue, handler: Any, **settings: Any) -> Worker[Any]:
    return Worker(queue, handler, isolation="async", **settings)


def test_a_thousand_run_at_once_on_a_handful_of_threads() -> None:
    queue = TestQueue(lease_seconds=60)
    queue.push_ids(*(f"m{number}" for number in range(1_200)))
    inside: list[str] = []
    most_threads = 0
    full = asyncio.Event()

    async def handle(message: Any) -> None:
        nonlocal most_threads
        inside.append(message.id)
        most_threads = max(most_threads, len(leftovers.threads))
        if len(inside) == 1_000:
            full.set()
        await full.wait()

    leftovers = Leftovers()
    report = run_until_empty(async_worker(queue, handle, concurrency=1_000, prefetch=0))
    assert report == WorkerReport(1_200, 0, 0, 0, 0)
    assert queue.most_out == 1_000
    assert queue.most_asked <= 1_000
    assert most_threads < 20


def test_outcomes_of_coroutines_are_the_same_as_of_threads() -> None:
    queue = TestQueue(max_attempts=2)
    queue.push_ids("fine", "retry", "reject", "raise", "exit", "nonsense", "cancel")

    async def handle(message: Any, ctx: Any) -> Any:
        await asyncio.sleep(0)
        match message.id:
            case "retry":
                return Retry(0.0) if ctx.attempt == 1 else None
            case "reject":
                return Reject("no")
            case "raise":
                raise ValueError("no")
            case "exit":
                raise SystemExit(3)
            case "nonsense":
                return 7
            case "cancel":
                raise asyncio.CancelledError
        return None

    report = run_until_empty(async_worker(queue, handle, concurrency=4))
    assert report == WorkerReport(2, 4, 5, 0, 0)
    reasons = {view.id: view.reason or "" for view in queue.dead_letters()}
    assert reasons["reject"] == "no"
    assert reasons["raise"] == "failed 2 times, last: ValueError: no"
    assert reasons["exit"] == "failed 2 times, last: SystemExit: 3"
    assert reasons["cancel"] == "failed 2 times, last: CancelledError"
    assert "of type int" in reasons["nonsense"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"stall_seconds": 0.3}, "stalled: no beat for 0.3 s"),
        ({"timeout_seconds": 0.3}, "timed out after 0.3 s"),
    ],
)
def test_a_stalled_or_slow_coroutine_is_cancelled_then_retried(
    limits: dict[str, float], reason: str
) -> None:
    queue = TestQueue()
    queue.push_ids("m")

    async def handle(message: Any, ctx: Any) -> None:
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(1000)
            finally:
                queue.log.append("cancelled")

    report = run_until_empty(async_worker(queue, handle, **limits))
    assert report == WorkerReport(1, 1, 0, 0, 0)
    calls = [line for line in queue.log if not line.startswith("renew")]
    assert calls == ["claim m", "cancelled", "nack m", "claim m", "ack m"]
    [view] = queue.find("m")
    assert view.past[0].reason == reason
    assert "asyncio.sleep(1000)" in (view.past[0].detail or "")


def test_a_beating_coroutine_is_not_stalled() -> None:
    clock = ManualClock()
    queue = TestQueue(clock=clock)
    queue.push_ids("m")

    async def handle(message: Any, ctx: Any) -> None:
        for _ in range(9):
            await asyncio.to_thread(pass_a_renewal, queue, clock)
            ctx.beat()

    worker = async_worker(queue, handle, stall_seconds=25, clock=clock)
    report = run_until_empty(worker, clock)
    assert report == WorkerReport(1, 0, 0, 0, 0)


def test_a_lost_lease_cancels_the_coroutine_and_settles_nothing() -> None:
    queue = TestQueue(lease_seconds=1.0)
    queue.push_ids("m")
    steps: list[str] = []

    async def handle(message: Any, ctx: Any) -> None:
        steps.append("begun")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            steps.append(f"lost {ctx.lost.is_set()}")
            raise

    with running(async_worker(queue, handle)) as run:
        wait_until(lambda: steps)
        queue.refusing.set()
        wait_until(lambda: steps[:2] == ["begun", "lost True"])
        report = run.stop_now()
    assert report.abandoned >= 1
    assert not {"ack m", "nack m", "dead_letter m"} & set(queue.log)


def test_a_coroutine_that_ignores_its_cancellation_loses_its_lease_and_others_continue() -> (
    None
):
    queue = TestQueue(lease_seconds=1.0)
    queue.push_ids("deaf", "n", "o")
    released = Event()

    async def handle(message: Any, ctx: Any) -> None:
        while message.id == "deaf" and ctx.attempt == 1 and not released.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    worker = async_worker(
        queue, handle, concurrency=2, timeout_seconds=0.3, kill_grace_seconds=0.2
    )
    try:
        with running(worker):
            wait_until(lambda: queue.stats().completed == 3)
            assert queue.seen.of(MessageLeaseLost)[0].message_id == "deaf"
    finally:
        released.set()


def test_a_coroutine_that_blocks_the_loop_still_loses_its_lease() -> None:
    queue = TestQueue(lease_seconds=1.0)
    queue.push_ids("m")
    released = Event()

    async def handle(message: Any, ctx: Any) -> None:
        released.wait(60)  # like a careless call of blocking code

    worker = async_worker(queue, handle, timeout_seconds=0.3, kill_grace_seconds=0.2)
    try:
        with running(worker) as run:
            gone = wait_until(lambda: queue.seen.of(MessageLeaseLost))
            assert gone[0].reason == "it was cancelled and did not end"
            assert run.stop_now().abandoned == 1
    finally:
        released.set()


def test_a_slow_queue_does_not_delay_the_loop() -> None:
    acking, moved, in_time = Event(), Event(), []

    class Slow(TestQueue):
        def _ack(self, leases: Any) -> Any:
            acking.set()
            in_time.append(moved.wait(60))
            return super()._ack(leases)

    queue = Slow()
    queue.push_ids("acked", "moves")

    async def handle(message: Any) -> None:
        while message.id == "moves" and not acking.is_set():
            await asyncio.sleep(0.001)
        if message.id == "moves":
            moved.set()  # the loop runs while the other message is being acked

    assert run_until_empty(async_worker(queue, handle, concurrency=2)).completed == 2
    assert all(in_time)


def test_saving_a_checkpoint_works_from_a_coroutine() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    found: list[Any] = []

    async def handle(message: Any, ctx: Any) -> Any:
        found.append(ctx.checkpoint)
        await asyncio.to_thread(ctx.beat, 0.5, {"step": ctx.attempt})
        return Retry(0.0) if ctx.attempt == 1 else None

    run_until_empty(async_worker(queue, handle))
    assert found == [None, {"step": 1}]


def test_no_thread_is_left_after_many_runs() -> None:
    async def handle(message: Any) -> None:
        await asyncio.sleep(0)

    leftovers = Leftovers()
    for _ in range(8):
        queue = TestQueue()
        queue.push_ids("m", "n", "o")
        assert run_until_empty(async_worker(queue, handle, concurrency=3)).completed == 3
    wait_until(lambda: not leftovers.threads)


def test_a_lease_lost_after_the_run_does_not_use_the_closed_loop() -> None:
    queue = TestQueue()
    queue.push_ids("m")
    leases: list[Any] = []

    async def handle(message: Any, ctx: Any) -> None:
        leases.append(ctx._lease)
        await asyncio.sleep(1000)

    worker = async_worker(queue, handle, drain_seconds=0.0)
    with running(worker) as run:
        wait_until(lambda: leases)
        run.stop()
    assert leases[0].state is LeaseState.RELEASED
    leases[0].lose("late")
