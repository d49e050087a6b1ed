"""One outcome makes one queue call, which is retried if the queue does not respond."""

from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest

from holdfast.errors import LeaseLost, MalformedMessage, MessageTooLarge, QueueUnavailable
from holdfast.events import (
    Completed,
    DeadLettered,
    Events,
    GivenBack,
    LeaseAtRisk,
    Retried,
)
from holdfast.lease.backoff import Backoff
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import Lease, LeaseState
from holdfast.queue.manager import MessageState
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.worker.outcome import Abandoned, Done, GiveBack, Outcome, Reject, Retry
from holdfast.worker.settle import SettleResult, settle


class FaultyQueue(MemoryQueue[AnyMessage]):
    """A queue whose acks fail with the given errors."""

    def __init__(self, clock: ManualClock) -> None:
        backoff = Backoff(first_seconds=10.0)
        super().__init__(lease_seconds=60.0, max_attempts=3, backoff=backoff, clock=clock)
        self.errors: list[BaseException] = []
        self.acks = 0

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        self.acks += 1
        if self.errors:
            raise self.errors.pop(0)
        return super()._ack(leases)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def queue(clock: ManualClock) -> FaultyQueue:
    queue = FaultyQueue(clock)
    queue.push(AnyMessage(id="m"))
    return queue


@pytest.fixture
def seen() -> list[Any]:
    return []


@pytest.fixture
def events(seen: list[Any]) -> Events:
    return Events(seen.append)


def get_state(queue: FaultyQueue) -> MessageState:
    [view] = queue.find("m")
    return view.state


def test_done_is_acked(queue: FaultyQueue, events: Events, seen: list[Any]) -> None:
    [message] = queue.poll()
    assert settle(queue, message, Done(), events, seconds=1.5) is SettleResult.COMPLETED
    assert get_state(queue) is MessageState.COMPLETED
    assert seen == [Completed("memory", "m", 1, 1.5)]


def test_retry_is_nacked_with_its_delay_reason_and_detail(
    queue: FaultyQueue, clock: ManualClock, events: Events, seen: list[Any]
) -> None:
    [message] = queue.poll()
    outcome = Retry(7.0, "not now", "because", log_reason="busy")
    assert settle(queue, message, outcome, events) is SettleResult.RETRIED
    assert seen == [Retried("memory", "m", 1, 7.0, "busy")]
    [view] = queue.find("m")
    assert (view.past[-1].reason, view.past[-1].detail) == ("not now", "because")
    clock.advance(6.9)
    assert queue.poll() == []
    clock.advance(0.2)
    assert [again.attempts for again in queue.poll()] == [2]


def test_retry_without_a_delay_follows_the_queues_backoff(
    queue: FaultyQueue, clock: ManualClock, events: Events
) -> None:
    [message] = queue.poll()
    settle(queue, message, Retry(), events)
    clock.advance(4.9)
    assert queue.poll() == []
    clock.advance(5.2)
    assert len(queue.poll()) == 1


def test_the_last_attempt_is_not_retried_but_dead_lettered(
    queue: FaultyQueue, events: Events, seen: list[Any]
) -> None:
    for _ in range(2):
        settle(queue, queue.poll()[0], Retry(0.0, "again"), events)
    [message] = queue.poll()
    outcome = Retry(0.0, "ValueError: no", "Traceback …", log_reason="ValueError")
    assert settle(queue, message, outcome, events) is SettleResult.DEAD_LETTERED
    reason = "failed 3 times, last: ValueError: no"
    assert seen[-1] == DeadLettered("memory", "m", 3, "failed 3 times, last: ValueError")
    [view] = queue.dead_letters()
    assert view.reason == reason
    [view] = queue.find("m")
    assert view.past[-1].detail == "Traceback …"


def test_reject_is_dead_lettered_at_once(
    queue: FaultyQueue, events: Events, seen: list[Any]
) -> None:
    [message] = queue.poll()
    assert settle(queue, message, Reject("hopeless"), events) is SettleResult.DEAD_LETTERED
    assert get_state(queue) is MessageState.FAILED
    assert seen == [DeadLettered("memory", "m", 1, "the handler rejected it")]


def test_give_back_is_released_and_not_charged(
    queue: FaultyQueue, events: Events, seen: list[Any]
) -> None:
    [message] = queue.poll()
    assert settle(queue, message, GiveBack(), events) is SettleResult.GIVEN_BACK
    assert seen == [GivenBack("memory", "m", 1)]
    [again] = queue.poll()
    assert again.attempts == 1


def test_abandoned_touches_nothing(queue: FaultyQueue, events: Events, seen: list[Any]) -> None:
    [message] = queue.poll()
    assert settle(queue, message, Abandoned("gone"), events) is SettleResult.ABANDONED
    assert get_state(queue) is MessageState.LEASED
    assert seen == []


@pytest.mark.parametrize("outcome", [Done(), Retry(0.0), Reject("no"), GiveBack()])
def test_a_lease_that_was_lost_settles_nothing_and_raises_nothing(
    queue: FaultyQueue,
    clock: ManualClock,
    events: Events,
    seen: list[Any],
    outcome: Outcome,
) -> None:
    [message] = queue.poll()
    clock.advance(61)
    [taken_over] = MemoryQueue(shared_with=queue, clock=clock).poll()
    assert settle(queue, message, outcome, events) is SettleResult.ABANDONED
    assert seen == []  # nothing is retried
    [view] = queue.find("m")
    assert view.state is MessageState.LEASED
    assert view.attempts == taken_over.attempts


def test_a_loss_noticed_while_settling_is_reported_once(
    queue: FaultyQueue, clock: ManualClock, events: Events, seen: list[Any]
) -> None:
    keeper = LeaseKeeper(clock, events)
    [message] = queue.poll()
    keeper.hold(get_lease(message))
    clock.advance(61)
    settle(queue, message, Done(), events)
    keeper.tick()
    assert [type(event).__name__ for event in seen] == ["MessageLeaseLost"]


@pytest.mark.parametrize("error", [OSError("disk away"), QueueUnavailable("away")])
def test_settling_is_retried_while_the_lease_lives(
    queue: FaultyQueue, events: Events, seen: list[Any], error: Exception
) -> None:
    queue.errors = [error] * 20
    [message] = queue.poll()
    assert settle(queue, message, Done(), events) is SettleResult.COMPLETED
    assert queue.acks == 21
    assert [type(event) for event in seen] == [LeaseAtRisk, Completed]


def test_a_queue_that_stays_unavailable_loses_only_the_lease(
    queue: FaultyQueue, clock: ManualClock, events: Events
) -> None:
    queue.errors = [OSError("disk away")] * 10_000
    [message] = queue.poll()
    lease, before = get_lease(message), clock.monotonic()
    assert settle(queue, message, Done(), events) is SettleResult.ABANDONED
    assert lease.state is LeaseState.LOST
    assert 60 <= clock.monotonic() - before < 61


def test_an_unknown_error_is_not_retried_forever(queue: FaultyQueue, events: Events) -> None:
    queue.errors = [TypeError("a bug")] * 10_000
    [message] = queue.poll()
    assert settle(queue, message, Done(), events) is SettleResult.ABANDONED
    assert queue.acks == 5
    assert get_lease(message).reason == "it could not be settled: TypeError: a bug"


@pytest.mark.parametrize("error", [MessageTooLarge("too large"), MalformedMessage("refused")])
def test_a_permanent_refusal_is_not_retried(
    queue: FaultyQueue, clock: ManualClock, events: Events, seen: list[Any], error: Exception
) -> None:
    queue.errors = [error] * 10_000
    [message] = queue.poll()
    before = clock.monotonic()
    assert settle(queue, message, Done(), events) is SettleResult.ABANDONED
    assert (queue.acks, clock.monotonic()) == (1, before)
    assert get_lease(message).state is LeaseState.LOST
    [event] = seen
    assert str(error) in event.error


def test_giving_up_loses_the_lease_so_that_the_message_comes_back(
    queue: FaultyQueue, events: Events
) -> None:
    queue.errors = [OSError("disk away")] * 10_000
    [message] = queue.poll()
    give_up = Event()
    give_up.set()
    assert settle(queue, message, Done(), events, give_up=give_up) is SettleResult.ABANDONED
    assert queue.acks == 1
    assert get_lease(message).state is LeaseState.LOST
