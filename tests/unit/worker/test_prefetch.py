"""Claiming ahead, with one slot and a manual clock. The worker's tests cover threads."""

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from holdfast.errors import ConfigError, LeaseLost, QueueUnavailable
from holdfast.events import Completed, Events
from holdfast.lease.backoff import Backoff
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import Lease
from holdfast.queue.admission import Delivery
from holdfast.queue.message import AnyMessage, get_lease
from holdfast.testing import ManualClock, MemoryQueue
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.outcome import DONE, Done, Outcome, Retry
from holdfast.worker.settle import ClaimedMessage, InFlight, WorkerReport
from holdfast.worker.worker import Worker


class RecordingQueue(MemoryQueue[AnyMessage]):
    """A queue that records its calls, and whose acks can fail."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(backoff=Backoff(0.0), **settings)
        self.claim_limits: list[int] = []
        self.acks: list[list[str]] = []
        self.ack_errors: list[Exception] = []

    def _claim(self, limit: int) -> Sequence[Delivery]:
        self.claim_limits.append(limit)
        return super()._claim(limit)

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        self.acks.append([lease.message_id for lease in leases])
        if self.ack_errors:
            raise self.ack_errors.pop(0)
        return super()._ack(leases)


class Ground:
    """A fetcher that claims ahead, with its queue, keeper, clock and events."""

    def __init__(
        self,
        *,
        slots: int = 1,
        prefetch: int = 10,
        lease_seconds: float = 60.0,
        refunds: bool = True,
    ) -> None:
        self.clock = ManualClock(auto_advance=True)
        self.seen: list[Any] = []
        events = Events(self.seen.append)
        self.queue = RecordingQueue(
            lease_seconds=lease_seconds, clock=self.clock, events=events
        )
        if not refunds:
            lacking = self.queue.capabilities - {"refund"}
            self.queue.capabilities = lacking  # type: ignore[misc]
        self.keeper = LeaseKeeper(self.clock, events)
        self.in_flight = InFlight(self.queue, events, self.clock)
        self.fetcher = Fetcher(self.keeper, self.in_flight, slots=slots, prefetch=prefetch)

    def push(self, count: int) -> None:
        self.queue.push_many([AnyMessage(id=f"m{number}") for number in range(count)])

    def be_fast(self) -> None:
        for _ in range(50):
            self.fetcher.note_finished(0.001)

    def fetch(self) -> ClaimedMessage[AnyMessage]:
        claimed = self.fetcher.fetch()
        assert claimed is not None
        return claimed

    def fetch_id(self) -> str:
        return self.fetch().message.id

    def settle(self, claimed: ClaimedMessage[AnyMessage], outcome: Outcome = DONE) -> None:
        self.in_flight.settle(claimed, outcome)

    def fetch_ahead(self, count: int = 10) -> ClaimedMessage[AnyMessage]:
        """Push messages, start the first, and have the others claimed ahead."""
        self.push(count)
        self.be_fast()
        claimed = self.fetch()
        assert len(self.in_flight.ready) == min(count, 10) - 1
        return claimed

    def count_attempts(self) -> dict[str, int]:
        """Claim all messages, and return the attempt of each."""
        claimed = self.queue.poll(100)
        return {message.id: get_lease(message).attempt for message in claimed}


# -- how many


def test_nothing_is_claimed_ahead_before_handlers_were_fast() -> None:
    ground = Ground()
    ground.push(20)
    ground.fetch()
    assert ground.queue.claim_limits == [1]


def test_fast_handlers_claim_a_full_batch() -> None:
    ground = Ground()
    ground.fetch_ahead(20)
    assert ground.queue.claim_limits == [ground.queue.poll_batch]
    assert ground.keeper.held == 10


def test_a_number_is_the_maximum() -> None:
    ground = Ground(prefetch=3)
    ground.push(20)
    ground.be_fast()
    ground.fetch()
    assert ground.queue.claim_limits == [4]


def test_one_slow_handler_ends_the_prefetch() -> None:
    ground = Ground()
    ground.push(20)
    ground.be_fast()
    ground.fetcher.note_finished(10.0)
    ground.fetch()
    assert ground.queue.claim_limits == [1]


@pytest.mark.parametrize(
    ("seconds", "slots", "ahead"),
    [
        (1.0, 1, 0),
        (1.0, 1000, 0),
        (5.0, 4, 0),
        (0.499, 1, 1),
        (0.499, 4, 4),
        (0.0999, 1, 9),
        (0.0, 1, 5000),
    ],
)
def test_what_is_claimed_ahead_is_finished_within_a_second(
    seconds: float, slots: int, ahead: int
) -> None:
    ground = Ground(slots=slots, prefetch=5000)
    ground.queue.poll_batch = 10_000
    for _ in range(100):
        ground.fetcher.note_finished(seconds)
    ground.push(1)
    ground.fetch()
    assert ground.queue.claim_limits == [1 + ahead]


def test_a_handler_that_takes_no_time_is_no_division_by_zero() -> None:
    ground = Ground(prefetch=5000)
    ground.queue.poll_batch = 10_000
    for _ in range(5000):  # until the average is too small to divide by
        ground.fetcher.note_finished(0.0)
    ground.push(1)
    ground.fetch()
    assert ground.queue.claim_limits[0] > 1000


def test_a_short_lease_claims_less_ahead() -> None:
    ground = Ground(lease_seconds=0.4)  # a quarter of it is 0.1 s
    ground.push(20)
    for _ in range(100):
        ground.fetcher.note_finished(0.024)
    ground.fetch()
    assert ground.queue.claim_limits == [4]


def test_slots_with_slow_handlers_claim_nothing_ahead() -> None:
    ground = Ground(slots=2)
    ground.push(20)
    ground.fetch()
    ground.clock.advance(5.0)
    for _ in range(100):
        ground.fetcher.note_finished(0.24)
    ground.fetch()
    assert ground.queue.claim_limits == [1, 1 + 3]  # of one slot, not of two


@pytest.mark.parametrize("prefetch", [-1, "many", 1.5])
def test_a_wrong_prefetch_is_refused(prefetch: Any) -> None:
    with pytest.raises(ConfigError, match="prefetch must be 'auto', or 0 or more messages"):
        Worker(MemoryQueue(), print, prefetch=prefetch)


def test_a_message_with_one_attempt_is_not_claimed_ahead() -> None:
    """A crash would cost it that attempt although no handler saw it."""
    assert Worker(MemoryQueue(max_attempts=1), print).prefetch == 0
    assert Worker(MemoryQueue(max_attempts=1), print, prefetch=5).prefetch == 0
    assert Worker(MemoryQueue(max_attempts=2), print).prefetch == 10


# -- while it waits


def test_a_message_that_waits_is_renewed_and_then_started() -> None:
    ground = Ground(lease_seconds=60.0)
    ground.fetch_ahead()
    for _ in range(5):
        ground.clock.advance(30.0)
        ground.keeper.tick()
    assert ground.fetch().lease.live


def test_a_message_whose_lease_was_lost_is_not_started() -> None:
    ground = Ground()
    ground.fetch_ahead()
    lost = ground.in_flight.ready[0]
    lost.lease.lose("another worker has it")
    assert ground.fetch_id() == "m2"
    assert lost not in ground.in_flight.claimed


def test_a_process_that_was_frozen_past_the_deadline_starts_nothing_stale() -> None:
    ground = Ground(lease_seconds=60.0)
    ground.fetch_ahead()
    ground.clock.advance(61.0)
    assert ground.fetch().lease.attempt == 2  # it was claimed again


def test_messages_behind_a_slow_handler_are_given_back_uncharged() -> None:
    ground = Ground()
    ground.fetch_ahead()
    ground.clock.advance(1.9)
    assert ground.fetcher.tick() < inf
    assert len(ground.in_flight.ready) == 9
    ground.clock.advance(0.2)
    ground.fetcher.tick()
    assert not ground.in_flight.ready
    assert ground.count_attempts() == {f"m{number}": 1 for number in range(1, 10)}


def test_after_a_give_back_less_is_claimed_ahead() -> None:
    ground = Ground(slots=2)
    ground.fetch_ahead()
    ground.clock.advance(2.1)
    ground.fetcher.tick()
    ground.fetch()
    assert ground.queue.claim_limits == [10, 1]


def test_where_a_give_back_costs_an_attempt_a_message_pays_it_once() -> None:
    ground = Ground(refunds=False)
    ground.queue.push_many([AnyMessage(id="old"), AnyMessage(id="slow")])
    for message in ground.queue.poll(1):
        ground.queue.nack(message, delay_seconds=0.0)
    ground.push(3)
    ground.be_fast()
    assert ground.fetch_id() == "slow"
    ground.clock.advance(2.1)
    ground.fetcher.tick()
    assert [claimed.message.id for claimed in ground.in_flight.ready] == ["old"]
    ground.keeper.tick()
    assert ground.fetch_id() == "old"


# -- a message that may crash the worker


def redeliver(ground: Ground, count: int) -> None:
    """Push messages that were delivered before."""
    ground.queue.push_many([AnyMessage(id=f"again{number}") for number in range(count)])
    for message in ground.queue.poll(count):
        ground.queue.nack(message, delay_seconds=0.0)


def test_a_message_that_was_delivered_before_is_started_when_no_other_waits() -> None:
    ground = Ground()
    redeliver(ground, 3)
    ground.push(4)
    ground.be_fast()
    started = [ground.fetch_id() for _ in range(4)]
    assert started == ["m0", "m1", "m2", "m3"]
    assert ground.fetch_id() == "again0"
    assert not ground.in_flight.ready
    assert ground.count_attempts() == {"again1": 2, "again2": 2}


def test_after_a_redelivery_nothing_is_claimed_ahead() -> None:
    ground = Ground()
    redeliver(ground, 3)
    ground.be_fast()
    for _ in range(3):
        ground.settle(ground.fetch())
    ground.push(20)
    ground.settle(ground.fetch())
    assert ground.queue.claim_limits[1:] == [10, 1, 1, 1]
    ground.fetch()
    assert ground.queue.claim_limits[-1] == 10


def test_a_crash_costs_a_message_that_waited_one_attempt_at_most() -> None:
    """The message that crashes workers is alone from its second attempt on."""
    clock = ManualClock()
    queue = RecordingQueue(lease_seconds=60.0, max_attempts=5, clock=clock)
    queue.push_many([AnyMessage(id=f"m{number}") for number in range(8)])
    for _ in range(5):  # each worker dies in the handler of m0
        in_flight = InFlight(queue, Events(), clock)
        fetcher = Fetcher(LeaseKeeper(clock), in_flight, prefetch=10)
        for _ in range(50):
            fetcher.note_finished(0.001)
        while (claimed := fetcher.fetch()) is not None and claimed.message.id != "m0":
            in_flight.settle(claimed, DONE)
        clock.advance(61.0)
    attempts = {message.id: get_lease(message).attempt for message in queue.poll(10)}
    assert attempts == {f"m{number}": 2 for number in range(1, 8)}
    assert queue.stats().failed == 1


# -- the end


def test_a_stop_gives_back_what_waits() -> None:
    ground = Ground()
    ground.fetch_ahead()
    ground.fetcher.close()
    ground.fetcher.tick()
    assert ground.fetcher.fetch() is None
    assert ground.count_attempts() == {f"m{number}": 1 for number in range(1, 10)}


def test_a_stop_finishes_what_waits_if_giving_back_would_cost_an_attempt() -> None:
    ground = Ground(refunds=False)
    ground.settle(ground.fetch_ahead())
    ground.fetcher.close()
    ground.fetcher.tick()
    for _ in range(9):
        ground.settle(ground.fetch())
    assert ground.fetcher.fetch() is None
    assert ground.in_flight.make_report() == WorkerReport(10, 0, 0, 0, 0)


@pytest.mark.parametrize(("refunds", "started"), [(True, 0), (False, 10)])
def test_a_poll_that_ends_after_the_stop_costs_no_attempt(refunds: bool, started: int) -> None:
    ground = Ground(refunds=refunds)
    ground.push(20)
    ground.be_fast()
    claim = ground.queue.poll

    def close_meanwhile(*args: Any, **options: Any) -> list[AnyMessage]:
        ground.fetcher.close()
        return claim(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ground.queue, "poll", close_meanwhile)
        handled = 0
        while (claimed := ground.fetcher.fetch()) is not None:
            ground.settle(claimed)
            handled += 1
    assert handled == started
    assert set(ground.count_attempts().values()) == {1}


def test_a_stop_now_gives_back_what_waits_in_any_case() -> None:
    ground = Ground(refunds=False)
    ground.fetch_ahead()
    ground.in_flight.give_up.set()
    ground.fetcher.close()
    ground.fetcher.tick()
    assert ground.fetcher.fetch() is None
    assert ground.in_flight.make_report().given_back == 9


# -- acks


def test_acks_share_calls_while_messages_wait() -> None:
    ground = Ground()
    ground.settle(ground.fetch_ahead(20))
    assert ground.queue.acks == []
    for _ in range(19):
        ground.settle(ground.fetch())
    assert [len(ack) for ack in ground.queue.acks] == [10, 10]
    assert ground.in_flight.make_report().completed == 20
    assert len([event for event in ground.seen if isinstance(event, Completed)]) == 20


def test_without_prefetch_every_ack_is_sent_at_once() -> None:
    ground = Ground(prefetch=0)
    ground.push(3)
    ground.be_fast()
    ground.fetcher.fill(3)
    for _ in range(3):
        ground.settle(ground.fetch())
    assert [len(ack) for ack in ground.queue.acks] == [1, 1, 1]


def test_no_more_acks_wait_than_one_call_carries() -> None:
    ground = Ground()
    ground.fetch_ahead(30)
    for message in ground.queue.poll(20):
        ground.settle(ClaimedMessage(message, get_lease(message)))
    assert [len(ack) for ack in ground.queue.acks] == [10, 10]


def test_an_ack_waits_a_hundredth_of_a_second_at_most() -> None:
    ground = Ground()
    ground.settle(ground.fetch_ahead())
    assert ground.fetcher.tick() == pytest.approx(ground.clock.monotonic() + 0.01)
    assert ground.queue.acks == []
    ground.clock.advance(0.011)
    ground.fetcher.tick()
    assert ground.queue.acks == [["m0"]]


def test_no_ack_waits_for_a_handler_when_no_message_is_ready() -> None:
    ground = Ground()
    ground.push(1)
    ground.be_fast()
    ground.settle(ground.fetch())
    assert ground.queue.acks == [["m0"]]


def test_other_outcomes_and_results_are_settled_at_once() -> None:
    ground = Ground()
    ground.settle(ground.fetch_ahead(), Retry(60.0))
    ground.settle(ground.fetch(), Done({"kept": True}))
    report = ground.in_flight.make_report()
    assert (report.retried, report.completed) == (1, 1)
    assert ground.queue.load_result("m1") == {"kept": True}


def test_a_lost_lease_fails_only_its_own_ack() -> None:
    ground = Ground()
    lost = ground.fetch_ahead()
    ground.settle(lost)
    ground.settle(ground.fetch())
    lost.lease.lose("another worker has it")
    while ground.in_flight.ready:
        ground.settle(ground.fetch())
    assert ground.in_flight.make_report() == WorkerReport(9, 0, 0, 0, 1)
    assert ground.queue.stats().completed == 9


def test_acks_that_fail_are_sent_again_one_by_one() -> None:
    ground = Ground()
    ground.queue.ack_errors = [QueueUnavailable("away")] * 3
    ground.settle(ground.fetch_ahead())
    while ground.in_flight.ready:
        ground.settle(ground.fetch())
    assert ground.in_flight.make_report() == WorkerReport(10, 0, 0, 0, 0)
    assert [len(ack) for ack in ground.queue.acks] == [10, 1, 1, *[1] * 10]


def test_no_time_limit_applies_to_a_message_whose_ack_waits() -> None:
    ground = Ground()
    ground.settle(ground.fetch_ahead())
    assert ground.in_flight.get_started() == []
    assert ground.in_flight.count_waiting() == 10
