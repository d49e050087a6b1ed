"""queue.aio: the loop runs on, and nothing that was claimed or finished gets lost."""

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pytest

from holdfast import (
    AnyMessage,
    LeaseLost,
    MalformedMessage,
    MessageState,
    QueueManager,
    open_queue,
)
from holdfast.queue.admission import Delivery
from holdfast.queue.aio import MAX_CALLS, MAX_POLLS
from holdfast.testing import ManualClock, MemoryQueue
from support.waiting import WAIT_TIMEOUT_SECONDS

Queue = QueueManager[AnyMessage]


@pytest.fixture(params=["memory:", "sqlite:{}/work.db", "file:{}/acme/enrich"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue]:
    with open_queue(request.param.format(tmp_path), env={}) as opened:
        yield opened


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait on the event loop until the condition is true."""
    async with asyncio.timeout(WAIT_TIMEOUT_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


class SlowQueue(MemoryQueue[AnyMessage]):
    """A queue whose claims take until `go_on` is set, as those of a slow service would."""

    def __init__(self) -> None:
        super().__init__()
        self.claiming, self.go_on = Event(), Event()

    def _claim(self, limit: int) -> Sequence[Delivery]:
        self.claiming.set()
        assert self.go_on.wait(WAIT_TIMEOUT_SECONDS)
        return super()._claim(limit)


class ThreadClock(ManualClock):
    """A clock that notes the threads that read it. Every call of a queue reads its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def monotonic(self) -> float:
        self.threads.add(get_ident())
        return super().monotonic()


@contextmanager
def locked_database(file: Path) -> Iterator[None]:
    """Hold the write lock of a SQLite file, so that every write to it waits."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@asynccontextmanager
async def count_ticks() -> AsyncIterator[list[float]]:
    """Yield the longest time that the event loop took to come back, as the last element."""
    pauses = [0.0]

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            pauses.append(max(pauses[-1], time.monotonic() - before))

    ticking = asyncio.create_task(tick())
    yield pauses
    ticking.cancel()


def test_every_call_has_an_async_form(queue: Queue) -> None:
    async def use() -> None:
        aio = queue.aio
        assert await aio.push(AnyMessage(id="a")) == "a"
        ids = await aio.push_many(AnyMessage(id=name) for name in "bcdef")
        assert ids == list("bcdef")
        polled: dict[str, Any] = {}
        while len(polled) < 6:
            polled |= {m.id: m for m in await aio.poll(6, wait_seconds=5)}
        await aio.extend(polled["a"], 30)
        await aio.ack(polled["a"])
        await aio.ack_many([polled["b"], polled["c"]])
        await aio.nack(polled["d"], delay_seconds=500)
        await aio.release(polled["e"])
        await aio.dead_letter(polled["f"], "no use")

    asyncio.run(use())
    counts = queue.stats()
    assert (counts.completed, counts.delayed, counts.ready, counts.failed) == (3, 1, 1, 1)


def test_no_call_runs_in_the_thread_of_the_event_loop() -> None:
    clock = ThreadClock()
    queue = MemoryQueue(clock=clock)

    async def call(function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        clock.threads.clear()
        result = await function(*args)
        assert clock.threads, function
        assert get_ident() not in clock.threads, function
        return result

    async def use() -> None:
        aio = queue.aio
        await call(aio.push, AnyMessage())
        await call(aio.push_many, [AnyMessage() for _ in range(4)])
        messages = await call(aio.poll, 5)
        await call(aio.extend, messages[0], 30)
        await call(aio.ack, messages[0])
        await call(aio.ack_many, messages[1:2])
        await call(aio.nack, messages[2])
        await call(aio.release, messages[3])
        await call(aio.dead_letter, messages[4], "no use")

    asyncio.run(use())


def test_errors_are_those_of_the_queue(queue: Queue) -> None:
    async def use() -> None:
        with pytest.raises(MalformedMessage):
            await queue.aio.push(AnyMessage(value=object()))
        await queue.aio.push(AnyMessage(id="a"))
        [message] = await queue.aio.poll()
        queue.cancel("a")
        with pytest.raises(LeaseLost):
            await queue.aio.ack(message)

    asyncio.run(use())


def test_a_payload_can_be_pushed() -> None:
    from dataclasses import dataclass

    @dataclass
    class Order:
        product: str

    async def use() -> Any:
        queue = open_queue("memory:", Order, env={})
        await queue.aio.push(Order("tea"))
        [message] = await queue.aio.poll()
        return message.payload

    assert asyncio.run(use()).product == "tea"


def test_the_loop_runs_on_while_a_push_waits_for_the_disk(tmp_path: Path) -> None:
    async def use() -> None:
        with open_queue(f"sqlite:{tmp_path}/work.db", env={}) as queue:
            async with count_ticks() as pauses:
                with locked_database(tmp_path / "work.db"):
                    push = asyncio.create_task(queue.aio.push(AnyMessage(id="a")))
                    await asyncio.sleep(1)
                    assert not push.done()
                await push
            assert len(pauses) > 20
            assert pauses[-1] < 0.5

    asyncio.run(use())


def test_the_loop_runs_on_while_a_poll_waits(queue: Queue) -> None:
    async def use() -> None:
        async with count_ticks() as pauses:
            assert await queue.aio.poll(wait_seconds=0.7) == []
        assert len(pauses) > 15
        assert pauses[-1] < 0.5

    asyncio.run(use())


def test_a_cancelled_poll_gives_back_what_it_claims_afterwards() -> None:
    queue = SlowQueue()
    queue.push(AnyMessage(id="a"))

    async def use() -> None:
        poll = asyncio.create_task(queue.aio.poll())
        await wait_until(queue.claiming.is_set)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        queue.go_on.set()
        await wait_until(lambda: queue.find("a")[0].fence == 1 and queue.stats().ready == 1)

    asyncio.run(use())
    [message] = queue.poll()
    assert message.attempts == 1  # it was not charged


def test_a_poll_that_is_cancelled_when_its_messages_arrive_gives_them_back(
    queue: Queue,
) -> None:
    queue.push(AnyMessage(id="a"))

    async def use() -> None:
        poll = asyncio.create_task(queue.aio.poll())
        await asyncio.sleep(0)  # lets it begin
        give_up_at = time.monotonic() + WAIT_TIMEOUT_SECONDS
        while queue.stats().leased == 0:  # without the loop, which would deliver the message
            assert time.monotonic() < give_up_at
            time.sleep(0.005)
        time.sleep(0.1)  # the thread hands over the result
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        await wait_until(lambda: queue.stats().ready == 1)

    asyncio.run(use())
    assert [view.id for view in queue.peek(MessageState.PENDING)] == ["a"]


def test_a_cancelled_poll_stops_waiting(queue: Queue) -> None:
    async def use() -> None:
        poll = asyncio.create_task(queue.aio.poll(wait_seconds=600))
        await asyncio.sleep(0.1)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        await queue.aio.push(AnyMessage(id="a"))
        await asyncio.sleep(0.6)  # longer than any pause between two looks at the queue
        assert queue.find("a")[0].fence == 0  # it was never claimed

    asyncio.run(use())


def test_a_settlement_does_not_wait_behind_polls(queue: Queue) -> None:
    queue.push(AnyMessage(id="a"))

    async def use() -> None:
        [message] = await queue.aio.poll()
        polls = [
            asyncio.create_task(queue.aio.poll(wait_seconds=600)) for _ in range(MAX_POLLS + 1)
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(WAIT_TIMEOUT_SECONDS):
            await queue.aio.ack(message)
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    asyncio.run(use())
    assert queue.stats().completed == 1


def test_an_ack_whose_task_is_cancelled_is_still_made(tmp_path: Path) -> None:
    async def use() -> None:
        with open_queue(f"sqlite:{tmp_path}/work.db", env={}) as queue:
            await queue.aio.push(AnyMessage(id="a"))
            [message] = await queue.aio.poll()
            with locked_database(tmp_path / "work.db"):
                pushes = [
                    asyncio.create_task(queue.aio.push(AnyMessage())) for _ in range(MAX_CALLS)
                ]
                ack = asyncio.create_task(queue.aio.ack(message))
                await asyncio.sleep(0.2)  # all threads are taken, so the ack has not begun
                ack.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await ack
            await asyncio.gather(*pushes)
            await wait_until(lambda: queue.stats().completed == 1)

    asyncio.run(use())


@pytest.mark.parametrize("queue", ["sqlite:{}/work.db", "file:{}/acme/enrich"], indirect=True)
def test_a_forked_child_has_threads_of_its_own(queue: Queue) -> None:
    asyncio.run(queue.aio.push(AnyMessage(id="parent")))
    child = os.fork()
    if child == 0:
        signal.alarm(int(WAIT_TIMEOUT_SECONDS))
        try:
            asyncio.run(queue.aio.push(AnyMessage(id="child")))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert {view.id for view in queue.peek(MessageState.PENDING)} == {"parent", "child"}
