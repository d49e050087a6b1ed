"""run_once, the fake context and the clock that skips waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf
from threading import Event
from typing import Any

import pytest

from holdfast import AnyMessage, Context, Done, GiveBack, QueueMessage, Reject, Retry
from holdfast.errors import ConfigError, LeaseLost, MalformedMessage
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import get_lease
from holdfast.testing import FakeContext, MemoryQueue, SkippingClock, arun_once, run_once

HOUR, DAY = 3600.0, 86_400.0


class Charge(QueueMessage):
    amount: int
    tags: tuple[str, ...] = ()


# -- run_once


@pytest.mark.parametrize("outcome", [Done(), Retry(5), Reject("no"), GiveBack()])
def test_the_outcome_of_a_handler_is_returned(outcome: Any) -> None:
    assert run_once(lambda message, ctx: outcome, Charge(amount=1)) == outcome


def test_nothing_means_done() -> None:
    assert run_once(lambda message: None, Charge(amount=1)) == Done()


def test_an_exception_is_a_retry_that_has_it() -> None:
    error = ValueError("no such luck")

    def broken(message: Charge) -> None:
        raise error

    outcome = run_once(broken, Charge(amount=1))
    assert isinstance(outcome, Retry)
    assert outcome.reason == "ValueError: no such luck"
    assert outcome.exception is error


def test_a_coroutine_is_awaited() -> None:
    async def handle(message: Charge, ctx: Context) -> Retry:
        return Retry(message.amount)

    assert run_once(handle, Charge(amount=7)) == Retry(7)


async def ask_for_a_retry(message: Charge, ctx: Context) -> Retry:
    await asyncio.sleep(0)
    return Retry(message.amount)


def test_a_coroutine_runs_on_the_loop_of_an_async_test() -> None:
    async def is_same_loop(message: Charge) -> Retry | None:
        return None if asyncio.get_running_loop() is loop else Retry()

    async def test() -> list[Any]:
        nonlocal loop
        loop = asyncio.get_running_loop()
        handlers: list[Any] = [is_same_loop, ask_for_a_retry, lambda message: Reject("no")]
        return [await arun_once(handler, Charge(amount=7)) for handler in handlers]

    loop: asyncio.AbstractEventLoop | None = None
    assert asyncio.run(test()) == [Done(), Retry(7), Reject("no")]


def test_an_exception_of_a_coroutine_is_a_retry_that_has_it() -> None:
    async def broken(message: Charge) -> None:
        raise SystemExit("no such luck")

    outcome = asyncio.run(arun_once(broken, Charge(amount=1)))
    assert isinstance(outcome, Retry)
    assert isinstance(outcome.exception, SystemExit)


def test_an_async_test_that_is_cancelled_ends() -> None:
    async def hang(message: Charge) -> None:
        await asyncio.sleep(60)

    async def test() -> None:
        await asyncio.wait_for(arun_once(hang, Charge(amount=1)), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(test())


def test_run_once_in_a_running_loop_names_the_way_out() -> None:
    async def test() -> None:
        assert run_once(lambda message: None, Charge(amount=1)) == Done()
        run_once(ask_for_a_retry, Charge(amount=7))

    with pytest.raises(ConfigError, match=r"use `await arun_once"):
        asyncio.run(test())


def test_a_value_that_no_handler_may_return_is_a_rejection() -> None:
    outcome = run_once(lambda message: 42, Charge(amount=1))  # type: ignore[arg-type, return-value]
    assert isinstance(outcome, Reject)
    assert "a value of type int" in outcome.reason


def test_ctrl_c_ends_the_test() -> None:
    def interrupted(message: Charge) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_once(interrupted, Charge(amount=1))


def test_the_handler_gets_what_a_queue_would_deliver() -> None:
    got: list[Charge] = []
    message = Charge(id="m", amount=1, tags=("a",))
    ctx = FakeContext(attempt=3)
    run_once(got.append, message, ctx)
    assert got[0] == message.model_copy(update={"attempts": 3})
    assert got[0] is not message
    assert got[0].lease.attempt == 3
    assert ctx.message_id == "m"


def test_a_message_that_no_queue_could_store_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="cannot be written as JSON"):
        run_once(lambda message: None, AnyMessage(stream=object()))


def take_charge(message: Charge) -> None: ...


@pytest.mark.parametrize(
    ("handler", "problem"),
    [(lambda: None, "takes \\(message, ctx\\)"), (take_charge, "takes Charge")],
)
def test_a_handler_that_no_worker_would_take_is_refused(
    handler: Callable[..., None], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        run_once(handler, AnyMessage())
    with pytest.raises(ConfigError, match=problem):
        asyncio.run(arun_once(handler, AnyMessage()))


# -- the fake context


def test_a_fake_context_describes_the_attempt() -> None:
    ctx = FakeContext("m", attempt=4, lease_seconds=30)
    assert (ctx.message_id, ctx.attempt, ctx.fence) == ("m", 4, 4)
    assert (ctx.seconds_left, ctx.checkpoint) == (30, None)
    assert not ctx.stopping.is_set()
    assert ctx.max_seconds_left == inf
    ctx = FakeContext(max_seconds=43_200)
    ctx.clock.advance(43_000)
    assert ctx.max_seconds_left == 200


def test_a_checkpoint_of_an_earlier_attempt_can_be_given() -> None:
    ctx = FakeContext(checkpoint={"page": 7})
    assert ctx.checkpoint == {"page": 7}
    ctx.beat(checkpoint={"page": 8})
    ctx.beat(0.5)
    assert ctx.saved_checkpoints == [{"page": 8}]
    assert (ctx.beats, ctx.progress) == (2, 0.5)
    assert ctx.checkpoint == {"page": 7}  # as in a real attempt


def test_a_checkpoint_that_no_queue_could_store_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="cannot be written as JSON"):
        FakeContext().beat(checkpoint=object())


def test_a_lease_can_be_lost_by_another_worker_or_by_time() -> None:
    lost, late = FakeContext(), FakeContext(lease_seconds=60)
    lost.lose()
    assert lost.lost.is_set()
    late.clock.advance(59.9)
    late.beat()
    late.clock.advance(0.1)
    for ctx in (lost, late):
        with pytest.raises(LeaseLost):
            ctx.beat()
        assert ctx.lost.is_set()
    assert (lost.beats, late.beats) == (0, 1)


# -- the clock that skips


@pytest.fixture
def clock() -> SkippingClock:
    return SkippingClock()


@pytest.fixture
def queue(clock: SkippingClock) -> MemoryQueue[AnyMessage]:
    return MemoryQueue(clock=clock)


def test_the_clock_runs_in_real_time_and_can_be_advanced(clock: SkippingClock) -> None:
    before, wall = clock.monotonic(), clock.time()
    clock.advance(HOUR)
    clock.advance(HOUR)
    assert 2 * HOUR <= clock.monotonic() - before < 2 * HOUR + 60
    assert 2 * HOUR <= clock.time() - wall < 2 * HOUR + 60
    clock.skip_to(before)  # it never goes back
    assert clock.monotonic() >= before + 2 * HOUR
    assert clock.wait(Event(), 0.001) is False
    real_before = SYSTEM_CLOCK.monotonic()
    clock.sleep(0.05)  # a worker waits like this for processes to end
    assert SYSTEM_CLOCK.monotonic() - real_before >= 0.05
    with pytest.raises(ValueError, match="cannot move by -1"):
        clock.advance(-1)


def test_a_lease_is_over_when_the_clock_was_advanced_by_its_length(
    queue: MemoryQueue[AnyMessage], clock: SkippingClock
) -> None:
    """Also if less than a millisecond of real time passed since the claim."""
    for _ in range(20):
        queue.push(AnyMessage())
        [message] = queue.poll()
        clock.advance(queue.lease_seconds)
        [again] = queue.poll()
        assert again.id == message.id
        queue.ack(again)


def test_a_poll_that_may_wait_skips_to_the_next_message(
    queue: MemoryQueue[AnyMessage],
) -> None:
    started_at = SYSTEM_CLOCK.monotonic()
    queue.push(AnyMessage(id="later"), delay_seconds=30 * DAY)
    queue.push(AnyMessage(id="sooner"), delay_seconds=DAY)
    polled = [queue.poll(wait_seconds=20)[0].id for _ in range(2)]
    assert polled == ["sooner", "sooner"]  # its lease ended before the other was due
    assert SYSTEM_CLOCK.monotonic() - started_at < 20


def test_a_poll_that_may_not_wait_skips_nothing(
    queue: MemoryQueue[AnyMessage], clock: SkippingClock
) -> None:
    before = clock.monotonic()
    queue.push(AnyMessage(), delay_seconds=HOUR)
    assert queue.poll() == []
    assert clock.monotonic() - before < HOUR


def test_time_is_not_skipped_while_a_message_is_worked_on(
    queue: MemoryQueue[AnyMessage], clock: SkippingClock
) -> None:
    before = clock.monotonic()
    queue.push_many([AnyMessage(id="running")])
    queue.push(AnyMessage(id="later"), delay_seconds=HOUR)
    [message] = queue.poll()
    LeaseKeeper(clock).hold(get_lease(message))  # as a worker does
    assert queue.poll(wait_seconds=0.05) == []
    assert clock.monotonic() - before < HOUR
    queue.ack(message)
    assert [later.id for later in queue.poll(wait_seconds=0.05)] == ["later"]


def test_time_is_not_skipped_between_a_claim_and_its_renewal(
    queue: MemoryQueue[AnyMessage], clock: SkippingClock
) -> None:
    """Otherwise another worker could take a message from one that has just claimed it."""
    before = clock.monotonic()
    queue.push(AnyMessage())
    [message] = queue.poll()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(queue.poll, wait_seconds=0.1)
        SYSTEM_CLOCK.sleep(0.05)  # a worker needs less than a thousandth of it
        LeaseKeeper(clock).hold(get_lease(message))
        assert other.result() == []
    assert clock.monotonic() - before < queue.lease_seconds


def test_a_poll_without_messages_waits_in_real_time(
    queue: MemoryQueue[AnyMessage], clock: SkippingClock
) -> None:
    before = clock.monotonic()
    assert queue.poll(wait_seconds=0.05) == []
    assert 0.05 <= clock.monotonic() - before < 60
