"""Workers whose queue skips the time until the next message is due."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import Any

import pytest

from holdfast import AnyMessage, Backoff, Context, Retry, Worker
from holdfast.events import Events, MessageLeaseLost, TakenOver
from holdfast.testing import MemoryQueueFactory, SkippingClock
from support.workers.running import Seen, run_until_empty

HOUR, DAY = 3600.0, 86_400.0
MAX_REAL_SECONDS = 30.0


def retry_twice(message: Any, ctx: Context) -> Retry | None:
    return Retry(DAY) if ctx.attempt < 3 else None


async def retry_twice_later(message: Any, ctx: Context) -> Retry | None:
    await asyncio.sleep(0)
    return Retry(DAY) if ctx.attempt < 3 else None


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(
    ("handler", "isolation"),
    [(retry_twice, "thread"), (retry_twice, "process"), (retry_twice_later, "async")],
)
def test_retries_take_no_real_time(
    memory_queue: MemoryQueueFactory, handler: Any, isolation: Any, concurrency: int
) -> None:
    queue = memory_queue()
    queue.push_many([AnyMessage() for _ in range(5)], delay_seconds=HOUR)
    started_at = time.monotonic()
    worker = Worker(queue, handler, isolation=isolation, concurrency=concurrency)
    report = run_until_empty(worker)
    assert (report.completed, report.retried, report.abandoned) == (5, 10, 0)
    assert time.monotonic() - started_at < MAX_REAL_SECONDS


def test_two_workers_share_a_queue(memory_queue: MemoryQueueFactory) -> None:
    seen = Seen()
    queue = memory_queue(events=Events(seen))
    for number in range(20):
        queue.push(AnyMessage(), delay_seconds=100.0 * number)
    workers = [Worker(queue, retry_twice), Worker(queue, retry_twice_later, isolation="async")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run_until_empty, workers))
    assert queue.stats().completed == 20
    assert seen.of(MessageLeaseLost) == seen.of(TakenOver) == []


def test_a_cancelled_message_is_not_waited_for(memory_queue: MemoryQueueFactory) -> None:
    queue = memory_queue(lease_seconds=DAY)
    queue.push(AnyMessage(id="m"))
    started_at = time.monotonic()
    report = run_until_empty(Worker(queue, lambda message: queue.cancel("m") and None))
    assert report.abandoned == 1
    assert time.monotonic() - started_at < MAX_REAL_SECONDS


def test_coroutines_are_given_back_at_once(memory_queue: MemoryQueueFactory) -> None:
    """Stopping waits in real time, although the clock skips waits for messages."""

    async def hang(message: AnyMessage) -> None:
        Timer(0, worker.stop_now).start()
        await asyncio.sleep(60)

    queue = memory_queue()
    queue.push(AnyMessage())
    worker = Worker(queue, hang, isolation="async")
    assert worker.run().given_back == 1


def sleep_long(message: AnyMessage) -> None:
    time.sleep(60)


def test_a_process_that_stalls_is_killed(memory_queue: MemoryQueueFactory) -> None:
    queue = memory_queue(max_attempts=2, backoff=Backoff(first_seconds=HOUR))
    queue.push(AnyMessage())
    report = run_until_empty(
        Worker(
            queue,
            sleep_long,
            isolation="process",
            stall_seconds=0.5,
            kill_grace_seconds=0.2,
        )
    )
    assert (report.retried, report.dead_lettered, report.abandoned) == (1, 1, 0)


def test_a_handler_sees_the_time_of_the_queue(memory_queue: MemoryQueueFactory) -> None:
    seconds_left: list[float] = []
    queue = memory_queue(lease_seconds=60)
    queue.push(AnyMessage(), delay_seconds=DAY)
    run_until_empty(Worker(queue, lambda _, ctx: seconds_left.append(ctx.seconds_left)))
    [left] = seconds_left
    assert 0 < left <= 60


def test_the_backoff_takes_no_real_time(memory_queue: MemoryQueueFactory) -> None:
    queue = memory_queue(max_attempts=10, backoff=Backoff(first_seconds=HOUR, max_seconds=DAY))
    queue.push(AnyMessage())

    def fail(message: AnyMessage) -> None:
        raise ValueError

    assert run_until_empty(Worker(queue, fail)).retried == 9


def test_a_handler_that_takes_a_while_does_not_lose_its_lease(
    memory_queue: MemoryQueueFactory, skipping_clock: SkippingClock
) -> None:
    """Although a second slot waits for a message that is due after the lease."""
    seen = Seen()
    queue = memory_queue(lease_seconds=5, events=Events(seen))
    queue.push(AnyMessage(id="slow"))
    queue.push(AnyMessage(id="later"), delay_seconds=HOUR)
    moved: list[float] = []

    def handle(message: AnyMessage) -> None:
        before = skipping_clock.monotonic()
        time.sleep(0.3 if message.id == "slow" else 0)
        moved.append(skipping_clock.monotonic() - before)

    report = run_until_empty(Worker(queue, handle, concurrency=2, timeout_seconds=5))
    assert report.completed == 2
    assert max(moved) < HOUR
    assert seen.of(MessageLeaseLost) == []


def test_a_crashed_worker_is_followed_at_once(memory_queue: MemoryQueueFactory) -> None:
    queue = memory_queue(lease_seconds=DAY)
    queue.push(AnyMessage())
    queue.poll()  # by a worker that never settles it
    attempts: list[int] = []
    run_until_empty(Worker(queue, lambda message, ctx: attempts.append(ctx.attempt)))
    assert attempts == [2]
