"""The fetcher with one slot and a manual clock. The worker's tests cover many slots."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.events import Claimed, Event, Events, GivenBack, PollFailed
from holdfast.lease.backoff import Backoff
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.admission import Delivery
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.outcome import Done, Outcome, Retry
from holdfast.worker.settle import ClaimedMessage, InFlight


class UnreliableQueue(MemoryQueue[AnyMessage]):
    """A queue that raises the given errors first, and records the calls it gets."""

    def __init__(self, clock: ManualClock, events: Events) -> None:
        super().__init__(
            lease_seconds=10.0, backoff=Backoff(5.0, 1.0), clock=clock, events=events
        )
        self.claim: Callable[[int], Sequence[Delivery]] = super()._claim
        self.errors: list[Exception] = []
        self.stats_calls = 0
        self.claim_limits: list[int] = []

    def _claim(self, limit: int) -> Sequence[Delivery]:
        self.claim_limits.append(limit)
        if self.errors:
            raise self.errors.pop(0)
        return self.claim(limit)

    def stats(self) -> Any:
        self.stats_calls += 1
        return super().stats()


class Ground:
    """A fetcher with its queue, keeper, clock and events."""

    def __init__(self, *, until_empty: bool = False, until_done: bool = False) -> None:
        self.clock = ManualClock(auto_advance=True)
        self.seen: list[Any] = []
        self.events = Events(self.seen.append)
        self.queue = UnreliableQueue(self.clock, self.events)
        self.keeper = LeaseKeeper(self.clock, self.events)
        self.in_flight = InFlight(self.queue, self.events, self.clock)
        self.fetcher = Fetcher(
            self.keeper, self.in_flight, until_empty=until_empty, until_done=until_done
        )

    def push(self, *ids: str, delay_seconds: float = 0.0) -> None:
        messages = [AnyMessage(id=message_id) for message_id in ids]
        self.queue.push_many(messages, delay_seconds=delay_seconds)

    def settle(self, claimed: ClaimedMessage[AnyMessage], outcome: Outcome = Done()) -> None:  # noqa: B008
        self.in_flight.settle(claimed, outcome)


def fetch(ground: Ground) -> ClaimedMessage[AnyMessage]:
    claimed = ground.fetcher.fetch()
    assert claimed is not None
    return claimed


def fetch_id(ground: Ground) -> str:
    return fetch(ground).message.id


def test_a_fetched_message_is_held_from_its_claim_on() -> None:
    ground = Ground()
    ground.push("a")
    claimed = fetch(ground)
    assert ground.keeper.held == 1
    assert ground.in_flight.claimed == {claimed}
    assert ground.seen == [Claimed("memory", "a", 1)]


def test_one_slot_claims_one_message() -> None:
    ground = Ground()
    ground.push("a", "b")
    assert [fetch_id(ground), fetch_id(ground)] == ["a", "b"]
    assert ground.queue.claim_limits == [1, 1]


def test_one_poll_claims_at_most_the_poll_batch_of_the_queue() -> None:
    ground = Ground()
    ground.push(*(f"m{number}" for number in range(40)))
    assert len(ground.fetcher.poll(1000)) == ground.queue.poll_batch == 10


def test_errors_are_reported_and_each_wait_is_longer() -> None:
    ground = Ground()
    ground.push("a")
    ground.queue.errors = [OSError("away")] * 5
    before = ground.clock.monotonic()
    assert fetch_id(ground) == "a"
    assert [event for event in ground.seen if isinstance(event, PollFailed)] == [
        PollFailed("memory", "OSError: away")
    ] * 5
    waited = ground.clock.monotonic() - before
    assert 0.5 * 3.1 <= waited <= 3.1  # 0.1 + 0.2 + 0.4 + 0.8 + 1.6, with jitter


def test_a_closed_fetcher_returns_no_message() -> None:
    ground = Ground()
    ground.push("a")
    ground.fetcher.close()
    assert ground.fetcher.fetch() is None
    assert ground.queue.stats().ready == 1


def test_messages_claimed_while_closing_are_given_back_uncharged() -> None:
    ground = Ground()
    ground.push("a", "b")
    claim = ground.queue.claim

    def close_meanwhile(limit: int) -> Sequence[Delivery]:
        ground.fetcher.close()
        return claim(2)

    ground.queue.claim = close_meanwhile
    assert ground.fetcher.fetch() is None
    assert [event.message_id for event in ground.seen if isinstance(event, GivenBack)] == [
        "a",
        "b",
    ]
    assert ground.in_flight.claimed == set()
    assert [delivery.attempt for delivery in claim(2)] == [1, 1]


def test_messages_that_cannot_be_held_are_given_back_uncharged() -> None:
    """Otherwise a message would stay claimed while no slot works on it."""
    ground = Ground()
    ground.push("a", "b")
    ground.queue.renew_batch = 0

    def close_after_the_first(event: Event) -> None:
        if isinstance(event, PollFailed):
            ground.fetcher.close()

    ground.events.subscribe(close_after_the_first)
    assert ground.fetcher.poll(2) == []
    assert ground.queue.stats().ready == 2
    assert ground.in_flight.claimed == set()
    [failed] = [event for event in ground.seen if isinstance(event, PollFailed)]
    assert "renew_batch" in failed.error
    assert [message.attempts for message in ground.queue.poll(2)] == [1, 1]


def test_until_empty_ends_when_the_queue_is_empty() -> None:
    ground = Ground(until_empty=True)
    assert ground.fetcher.fetch() is None
    assert ground.fetcher.closed


def test_until_empty_waits_for_delayed_messages() -> None:
    ground = Ground(until_empty=True)
    ground.push("later", delay_seconds=60.0)
    claimed = fetch(ground)
    ground.settle(claimed, Retry(90.0))
    claimed = fetch(ground)
    ground.settle(claimed)
    assert ground.fetcher.fetch() is None


def test_until_empty_waits_until_given_up_messages_come_back() -> None:
    ground = Ground(until_empty=True)
    ground.push("a")
    claimed = fetch(ground)
    claimed.lease.lose("stalled")
    again = fetch(ground)
    assert again.lease.attempt == 2
    ground.settle(again)
    ground.settle(claimed)
    assert ground.fetcher.fetch() is None


def test_until_empty_does_not_wait_for_a_given_up_message_that_was_cancelled() -> None:
    ground = Ground(until_empty=True)
    ground.push("a")
    claimed = fetch(ground)
    ground.queue.cancel("a")
    ground.settle(claimed)
    before = ground.clock.monotonic()
    assert ground.fetcher.fetch() is None
    assert ground.clock.monotonic() - before < 1


def test_without_exact_counts_a_given_up_message_is_waited_for_until_its_lease_ends() -> None:
    ground = Ground(until_empty=True)
    ground.queue.capabilities = frozenset()  # type: ignore[misc]
    ground.push("a")
    claimed = fetch(ground)
    ground.queue.cancel("a")
    ground.settle(claimed)
    before = ground.clock.monotonic()
    assert ground.fetcher.fetch() is None
    assert ground.clock.monotonic() - before >= ground.queue.lease_seconds


def test_until_empty_does_not_end_while_a_slot_is_working() -> None:
    ground = Ground(until_empty=True)
    ground.push("a")
    claimed = fetch(ground)
    finished: list[str] = []

    def finish_later(limit: int) -> list[AnyMessage]:
        if ground.clock.monotonic() > before + 8:
            finished.append(claimed.message.id)
            ground.settle(claimed)
        return []

    before = ground.clock.monotonic()
    ground.queue.claim = finish_later
    assert ground.fetcher.fetch() is None
    assert finished == ["a"]


def test_until_empty_calls_stats_rarely() -> None:
    ground = Ground(until_empty=True)
    ground.push("later", delay_seconds=60.0)
    ground.settle(fetch(ground))
    assert ground.queue.stats_calls <= 125
    assert len(ground.queue.claim_limits) > 2 * ground.queue.stats_calls


@pytest.mark.parametrize("until_empty", [True, False])
def test_errors_are_not_mistaken_for_an_empty_queue(until_empty: bool) -> None:
    ground = Ground(until_empty=until_empty)
    ground.push("a")
    ground.queue.errors = [OSError("away")] * 9  # for less than a minute
    assert fetch_id(ground) == "a"


# -- runs that end by themselves


def test_until_empty_gives_up_if_the_queue_cannot_be_reached_for_a_minute() -> None:
    ground = Ground(until_empty=True)
    ground.queue.errors = [OSError("away")] * 100
    before = ground.clock.monotonic()
    with pytest.raises(OSError, match="away"):
        ground.fetcher.fetch()
    assert 60.0 <= ground.clock.monotonic() - before <= 71.0


def test_the_minute_counts_from_the_last_response() -> None:
    ground = Ground(until_empty=True)
    ground.push("later", delay_seconds=150.0)
    started_at, claim = ground.clock.monotonic(), ground.queue.claim

    def fail_for_a_while(limit: int) -> list[AnyMessage]:
        if 100.0 <= ground.clock.monotonic() - started_at < 130.0:
            raise OSError("away")
        return claim(limit)

    ground.queue.claim = fail_for_a_while
    assert fetch_id(ground) == "later"


def test_until_empty_gives_up_if_the_queue_can_never_be_counted() -> None:
    ground = Ground(until_empty=True)

    def deny() -> Any:
        raise OSError("denied")

    ground.queue.stats = deny  # type: ignore[method-assign]
    with pytest.raises(OSError, match="denied"):
        ground.fetcher.fetch()


def test_until_empty_does_not_give_up_while_work_runs_here() -> None:
    """Raising the error would end the work although the queue may soon be back."""
    ground = Ground(until_empty=True)
    ground.push("a")
    claimed = fetch(ground)
    ground.queue.errors = [OSError("away")] * 100

    def finish_late(event: Event) -> None:
        if isinstance(event, PollFailed) and len(ground.queue.errors) == 50:
            claimed.lease.lose("too late")

    ground.events.subscribe(finish_late)
    with pytest.raises(OSError, match="away"):
        ground.fetcher.fetch()
    assert len(ground.queue.errors) == 50


def test_a_run_without_end_keeps_trying() -> None:
    ground = Ground()
    ground.push("a")
    ground.queue.errors = [OSError("away")] * 100
    assert fetch_id(ground) == "a"


def test_until_done_waits_for_messages_that_other_workers_hold() -> None:
    ground = Ground(until_done=True)
    ground.push("a")
    [held] = ground.queue.poll(1)
    settled_at = ground.clock.monotonic() + 5.0

    def settle_later(limit: int) -> Sequence[Delivery]:
        if ground.clock.monotonic() >= settled_at and get_lease(held).live:
            ground.queue.ack(held)
        return []

    ground.queue.claim = settle_later
    assert ground.fetcher.fetch() is None
    assert ground.clock.monotonic() >= settled_at
