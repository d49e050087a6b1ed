"""The feed, with one slot and time by hand. What many slots do is in the worker's tests."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.backoff import Backoff
from holdfast.core.events import Claimed, Event, Events, GivenBack, PollFailed
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.queue.message import AnyMessage, lease_of
from holdfast.core.worker.fetcher import Fetcher
from holdfast.core.worker.in_flight import InFlight
from holdfast.core.worker.outcome import Done, Retry
from holdfast.testing import ManualClock, MemoryQueue


class Unreliable(MemoryQueue[AnyMessage]):
    """A queue with troubles to come, and a count of what is asked of it."""

    def __init__(self, clock: ManualClock, events: Events) -> None:
        super().__init__(
            lease_seconds=10.0, backoff=Backoff(5.0, 1.0), clock=clock, events=events
        )
        self.claim: Callable[[int], list[AnyMessage]] = super()._claim
        self.troubles: list[Exception] = []
        self.looks = 0
        self.asked: list[int] = []

    def _claim(self, limit: int) -> list[AnyMessage]:
        self.asked.append(limit)
        if self.troubles:
            raise self.troubles.pop(0)
        return self.claim(limit)

    def stats(self) -> Any:
        self.looks += 1
        return super().stats()


class Ground:
    """A feed and all that is around it."""

    def __init__(
        self, *, until_empty: bool = False, stall_seconds: float | None = None
    ) -> None:
        self.clock = ManualClock(auto_advance=True)
        self.seen: list[Any] = []
        self.events = Events(self.seen.append)
        self.queue = Unreliable(self.clock, self.events)
        self.keeper = LeaseKeeper(self.clock, self.events)
        self.ledger = InFlight(self.queue, self.events)
        self.feed = Fetcher(
            self.queue,
            self.keeper,
            self.ledger,
            self.clock,
            self.events,
            until_empty=until_empty,
            stall_seconds=stall_seconds,
        )

    def push(self, *ids: str, delay_seconds: float = 0.0) -> None:
        messages = [AnyMessage(id=message_id) for message_id in ids]
        self.queue.push_many(messages, delay_seconds=delay_seconds)

    def finish(self, message: AnyMessage, outcome: Any = Done()) -> None:  # noqa: B008
        self.ledger.settle(message, outcome)


def taken(ground: Ground) -> AnyMessage:
    message = ground.feed.take()
    assert message is not None
    return message


def test_what_is_taken_is_held_from_the_claim_on() -> None:
    ground = Ground(stall_seconds=3.0)
    ground.push("a")
    message = taken(ground)
    assert ground.keeper.held == 1
    assert lease_of(message).stall_seconds == 3.0
    assert ground.ledger.open() == (lease_of(message),)
    assert ground.seen == [Claimed("memory", "a", 1)]


def test_one_slot_asks_for_one_message() -> None:
    ground = Ground()
    ground.push("a", "b")
    assert [taken(ground).id, taken(ground).id] == ["a", "b"]
    assert ground.queue.asked == [1, 1]


def test_no_more_is_asked_for_at_once_than_the_queue_is_good_for() -> None:
    ground = Ground()
    ground.push(*(f"m{number}" for number in range(40)))
    assert len(ground.feed.poll(1000)) == ground.queue.poll_batch == 10


def test_troubles_are_reported_and_waited_out_longer_each_time() -> None:
    ground = Ground()
    ground.push("a")
    ground.queue.troubles = [OSError("away")] * 5
    before = ground.clock.monotonic()
    assert taken(ground).id == "a"
    assert [event for event in ground.seen if isinstance(event, PollFailed)] == [
        PollFailed("memory", "OSError: away")
    ] * 5
    waited = ground.clock.monotonic() - before
    assert 0.5 * 3.1 <= waited <= 3.1  # 0.1 + 0.2 + 0.4 + 0.8 + 1.6, with jitter


def test_a_closed_feed_gives_nothing() -> None:
    ground = Ground()
    ground.push("a")
    ground.feed.close()
    assert ground.feed.take() is None
    assert ground.queue.stats().ready == 1


def test_what_was_claimed_while_it_was_closed_is_given_back_uncharged() -> None:
    ground = Ground()
    ground.push("a", "b")
    claim = ground.queue.claim

    def close_meanwhile(limit: int) -> list[AnyMessage]:
        ground.feed.close()
        return claim(2)

    ground.queue.claim = close_meanwhile
    assert ground.feed.take() is None
    assert [event.message_id for event in ground.seen if isinstance(event, GivenBack)] == [
        "a",
        "b",
    ]
    assert ground.ledger.open() == ()
    assert [message.attempts for message in claim(2)] == [1, 1]


def test_what_cannot_be_held_is_given_back_uncharged() -> None:
    """Otherwise it would be claimed, worked on by no slot and renewed by no keeper."""
    ground = Ground()
    ground.push("a", "b")
    ground.queue.renew_batch = 0

    def close_after_the_first(event: Event) -> None:
        if isinstance(event, PollFailed):
            ground.feed.close()

    ground.events.subscribe(close_after_the_first)
    assert ground.feed.poll(2) == []
    assert ground.queue.stats().ready == 2
    assert ground.ledger.open() == ()
    [failed] = [event for event in ground.seen if isinstance(event, PollFailed)]
    assert "renew_batch" in failed.error
    assert [message.attempts for message in ground.queue.poll(2)] == [1, 1]


def test_until_empty_ends_when_nothing_is_there() -> None:
    ground = Ground(until_empty=True)
    assert ground.feed.take() is None
    assert ground.feed.closed


def test_until_empty_waits_for_what_is_delayed() -> None:
    ground = Ground(until_empty=True)
    ground.push("later", delay_seconds=60.0)
    message = taken(ground)
    ground.finish(message, Retry(90.0))
    message = taken(ground)
    ground.finish(message)
    assert ground.feed.take() is None


def test_until_empty_waits_for_what_was_given_up_to_come_back() -> None:
    ground = Ground(until_empty=True)
    ground.push("a")
    message = taken(ground)
    lease_of(message).lose("stalled")
    again = taken(ground)
    assert again.attempts == 2
    ground.finish(again)
    ground.finish(message)
    assert ground.feed.take() is None


def test_until_empty_does_not_end_while_a_slot_is_at_work() -> None:
    ground = Ground(until_empty=True)
    ground.push("a")
    message = taken(ground)
    finished: list[str] = []

    def finish_later(limit: int) -> list[AnyMessage]:
        if ground.clock.monotonic() > before + 8:
            finished.append(message.id)
            ground.finish(message)
        return []

    before = ground.clock.monotonic()
    ground.queue.claim = finish_later
    assert ground.feed.take() is None
    assert finished == ["a"]


def test_until_empty_looks_at_the_books_sparingly() -> None:
    ground = Ground(until_empty=True)
    ground.push("later", delay_seconds=60.0)
    ground.finish(taken(ground))
    assert ground.queue.looks <= 125
    assert len(ground.queue.asked) > 2 * ground.queue.looks


@pytest.mark.parametrize("until_empty", [True, False])
def test_troubles_do_not_pass_for_emptiness(until_empty: bool) -> None:
    ground = Ground(until_empty=until_empty)
    ground.push("a")
    ground.queue.troubles = [OSError("away")] * 30
    assert taken(ground).id == "a"
