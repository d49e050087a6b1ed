"""The keeper with faults: it tolerates them or loses the lease, but never silently."""

from itertools import pairwise
from math import inf

import pytest
from lease_source import FakeSource, let_pass

from holdfast.errors import QueueUnavailable
from holdfast.events import Event, Events, LeaseAtRisk, MessageLeaseLost, NearCap
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import RENEWED, Lease, LeaseState, Refused, Renewal, Unanswered
from holdfast.testing.clock import ManualClock

TWELVE_HOURS = 12 * 3600


@pytest.fixture
def source(clock: ManualClock) -> FakeSource:
    return FakeSource(clock)


@pytest.fixture
def seen() -> list[Event]:
    return []


@pytest.fixture
def keeper(clock: ManualClock, seen: list[Event]) -> LeaseKeeper:
    return LeaseKeeper(clock, Events(seen.append))


def make_failing_answer(reason: str = "throttled"):
    def answer(lease: Lease) -> Renewal:
        return Unanswered(reason)

    return answer


def select(kind: type[Event], seen: list[Event]) -> list[Event]:
    return [event for event in seen if isinstance(event, kind)]


# -- frozen


def test_waking_past_the_deadline_loses_the_lease_without_a_call(clock, source, keeper, seen):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    clock.advance(60)
    tick = keeper.tick()
    assert (tick.lost, tick.next_at) == (1, inf)
    assert source.calls == []
    assert lease.lost.is_set()
    assert select(MessageLeaseLost, seen) == [
        MessageLeaseLost("fake", "m", 1, "its deadline passed before it could be renewed")
    ]


def test_a_freeze_during_the_call_loses_the_lease_although_it_was_granted(
    clock, source, keeper
):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    source.before_answering = lambda: clock.advance(40)
    clock.advance(20)
    assert keeper.tick().lost == 1
    assert lease.state is LeaseState.LOST


class FreezingClock(ManualClock):
    """A clock that stops for `seconds` just before one of its readings."""

    def __init__(self, at_reading: int, seconds: float) -> None:
        super().__init__()
        self.readings_left = at_reading
        self.seconds = seconds

    def monotonic(self) -> float:
        self.readings_left -= 1
        if self.readings_left == 0:
            self.advance(self.seconds)
        return super().monotonic()


@pytest.mark.parametrize("at_reading", range(1, 12))
def test_a_freeze_at_any_moment_of_a_pass_never_leads_to_a_late_call(clock, at_reading):
    source = FakeSource(clock)  # uses a clock that the freeze does not affect
    lease = source.lease(seconds=60)
    frozen = FreezingClock(at_reading, seconds=100)
    keeper = LeaseKeeper(frozen)
    keeper.hold(lease)
    frozen.advance(20)
    calls_at: list[float] = []
    source.before_answering = lambda: calls_at.append(ManualClock.monotonic(frozen))
    while frozen.readings_left > 0:
        keeper.tick()
    keeper.tick()
    assert all(at < lease.claimed_at + 60 for at in calls_at)
    assert lease.state is LeaseState.LOST


def test_a_freeze_shorter_than_the_lease_costs_nothing(clock, source, keeper):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    clock.advance(59.9)
    assert keeper.tick().renewed == 1
    assert lease.state is LeaseState.HELD


# -- throttled


def test_throttling_is_tolerated_until_the_lease_runs_out(clock, source, keeper, seen):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    source.answer = make_failing_answer()
    let_pass(clock, keeper, 58)
    assert lease.state is LeaseState.AT_RISK
    source.answer = lambda lease: RENEWED
    let_pass(clock, keeper, 2)
    assert lease.state is LeaseState.HELD
    [at_risk] = select(LeaseAtRisk, seen)  # one line per transition, not per try
    assert at_risk == LeaseAtRisk("fake", "m", 1, "throttled", pytest.approx(40))
    assert select(MessageLeaseLost, seen) == []


def test_an_outage_longer_than_the_lease_loses_it_at_the_deadline_and_says_why(
    clock, source, keeper, seen
):
    start = clock.monotonic()
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    source.answer = make_failing_answer("throttled")
    let_pass(clock, keeper, 59.9)
    assert lease.state is LeaseState.AT_RISK
    let_pass(clock, keeper, 0.1)
    assert lease.state is LeaseState.LOST
    assert "throttled" in lease.reason
    assert "deadline" in lease.reason
    calls = len(source.calls)
    let_pass(clock, keeper, 600)
    assert len(source.calls) == calls
    assert all(call.at < start + 60 for call in source.calls)


def test_retries_back_off_and_never_flood_the_source(clock, source, keeper):
    keeper.hold(source.lease(seconds=60))
    source.answer = make_failing_answer()
    let_pass(clock, keeper, 61)
    gaps = [after.at - before.at for before, after in pairwise(source.calls)]
    assert 5 <= len(source.calls) <= 30
    assert 0.6 <= gaps[0] <= 1.2
    assert 1.2 <= gaps[1] <= 2.4
    assert min(gaps) > 0.29


def test_the_next_outage_starts_with_a_short_delay_again(clock, source, keeper):
    keeper.hold(source.lease(seconds=60))
    source.answer = make_failing_answer()
    let_pass(clock, keeper, 50)
    source.answer = lambda lease: RENEWED
    let_pass(clock, keeper, 9)
    source.answer = make_failing_answer()
    source.calls.clear()
    let_pass(clock, keeper, 25)
    assert 0.6 <= source.calls[1].at - source.calls[0].at <= 1.2


def test_leases_of_one_source_that_fail_together_are_retried_together(clock, source, keeper):
    for lease in source.leases(100):
        keeper.hold(lease)
    source.answer = make_failing_answer()
    clock.advance(20)
    keeper.tick()
    source.answer = lambda lease: RENEWED
    source.calls.clear()
    ticks = let_pass(clock, keeper, 2)
    assert sum(tick.renewed for tick in ticks) == 100
    assert len(source.calls) <= 12


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionError("no route for secret-receipt-risky"), "ConnectionError"),
        (QueueUnavailable("the folder is read-only"), "the folder is read-only"),
    ],
)
def test_a_source_that_raises_counts_as_unanswered_for_its_batch_only(
    clock, keeper, seen, error, reason
):
    good, bad = FakeSource(clock, "good"), FakeSource(clock, "bad")
    fine, risky = good.lease("fine"), bad.lease("risky")
    keeper.hold(fine)
    keeper.hold(risky)

    def fail() -> None:
        raise error

    bad.before_answering = fail
    clock.advance(20)
    tick = keeper.tick()
    assert (tick.renewed, tick.at_risk, tick.lost) == (1, 1, 0)
    assert risky.state is LeaseState.AT_RISK
    assert risky.reason == reason
    assert "receipt" not in str(seen)


def test_the_text_of_a_holdfast_error_is_kept(clock, source, keeper):
    lease = source.lease()
    keeper.hold(lease)

    def fail() -> None:
        raise QueueUnavailable("the folder is read-only")

    source.before_answering = fail
    clock.advance(20)
    keeper.tick()
    assert lease.reason == "the folder is read-only"


@pytest.mark.parametrize("attribute", ["name", "renew_batch"])
def test_a_lease_whose_source_lacks_an_attribute_is_refused_by_its_name(
    clock, source, keeper, attribute
):
    lease = source.lease()
    delattr(source, attribute)
    with pytest.raises(TypeError, match=f"FakeSource.*{attribute}"):
        keeper.hold(lease)
    assert keeper.held == 0


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("name", None),
        ("renew_batch", 0),
        ("renew_batch", -1),
        ("renew_batch", True),
        ("renew_batch", 2.5),
        ("renew_batch", "10"),
        ("renew", None),
    ],
)
def test_a_lease_whose_source_has_a_wrong_attribute_is_refused_by_its_name(
    clock, source, keeper, attribute, value
):
    lease = source.lease()
    setattr(source, attribute, value)
    with pytest.raises(TypeError, match=f"FakeSource.*{attribute}.*{value!r}"):
        keeper.hold(lease)
    assert keeper.held == 0


@pytest.mark.parametrize(
    "broken", ["name", "renew_batch", "answers", "too few", "no answers", "raises"]
)
def test_a_broken_source_is_retried_with_growing_delays_and_other_leases_are_renewed(
    clock, source, keeper, seen, caplog, broken
):
    """Each of these once made the keeper loop without a pause and log a traceback."""
    other = FakeSource(clock, "other")
    good, bad = other.lease("good"), source.lease("bad")
    keeper.hold(good)
    keeper.hold(bad)
    asked_at = break_source(source, clock, broken)
    let_pass(clock, keeper, 59)
    assert good.state is LeaseState.HELD
    if broken in ("name", "renew_batch"):  # the keeper read these when it was given the lease
        assert bad.state is LeaseState.HELD
        assert len(asked_at) <= 3
    else:
        assert bad.state is LeaseState.AT_RISK
        assert 3 <= len(asked_at) <= 20  # 40 s of retries, in growing steps
        assert [event.message_id for event in seen if isinstance(event, LeaseAtRisk)] == ["bad"]
        let_pass(clock, keeper, 2)
        assert bad.state is LeaseState.LOST
    assert caplog.records == []


def break_source(source: FakeSource, clock: ManualClock, how: str) -> list[float]:
    """Break the source and return the list of times at which it is called afterwards."""
    asked_at: list[float] = []

    def broken(leases, seconds):
        asked_at.append(clock.monotonic())
        match how:
            case "answers":
                return [None] * len(leases)
            case "too few":
                return []
            case "no answers":
                return None
            case "raises":
                raise AttributeError("bug")
        return [RENEWED] * len(leases)

    source.renew = broken
    if how in ("name", "renew_batch"):
        delattr(source, how)
    return asked_at


def test_a_source_that_returns_too_few_results_is_not_trusted(clock, source, keeper):
    leases = source.leases(3)
    for lease in leases:
        keeper.hold(lease)
    source.renew = lambda leases, seconds: [RENEWED]
    clock.advance(20)
    tick = keeper.tick()
    assert (tick.renewed, tick.at_risk) == (0, 3)
    assert {lease.reason for lease in leases} == {
        "the source returned 1 results for 3 renewals"
    }


# -- refused


def test_a_refusal_loses_the_lease_at_once(clock, source, keeper, seen):
    lease = source.lease()
    keeper.hold(lease)
    source.answer = lambda lease: Refused("taken over by another worker")
    clock.advance(20)
    assert keeper.tick().lost == 1
    assert select(MessageLeaseLost, seen) == [
        MessageLeaseLost("fake", "m", 1, "taken over by another worker")
    ]


def test_a_loss_noticed_outside_the_keeper_is_reported_once(clock, source, keeper, seen):
    lease = source.lease()
    keeper.hold(lease)
    keeper.hold(lease)
    lease.lose("found taken over when it was settled")
    let_pass(clock, keeper, 600)
    assert select(MessageLeaseLost, seen) == [
        MessageLeaseLost("fake", "m", 1, "found taken over when it was settled")
    ]
    assert source.calls == []


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1)])
def test_a_failing_callback_does_not_affect_other_leases(clock, source, keeper, error):
    first, second = source.lease("first"), source.lease("second")

    def fail(lease: Lease) -> None:
        raise error

    for lease in (first, second):
        lease.on_lost(fail)
        keeper.hold(lease)
    keeper.hold(third := source.lease("third", seconds=600))
    clock.advance(60)
    assert keeper.tick().lost == 2
    assert second.state is LeaseState.LOST
    source.answer = lambda lease: Refused("gone")
    third.on_lost(fail)
    clock.advance(200)
    assert keeper.tick().lost == 1


# -- slow


def test_a_lease_that_runs_out_during_a_slow_call_is_lost_before_the_next_call(clock, keeper):
    slow, other = FakeSource(clock, "slow", renew_batch=1), FakeSource(clock, "other")
    for lease in slow.leases(2, seconds=90):
        keeper.hold(lease)
    clock.advance(20)
    keeper.hold(short := other.lease("short", seconds=60))
    calls_before_the_loss: list[int] = []
    short.on_lost(lambda lease: calls_before_the_loss.append(len(slow.calls)))
    slow.before_answering = lambda: clock.advance(51 if len(slow.calls) == 1 else 0)
    clock.advance(10)  # both slow leases are due, the short one is not
    tick = keeper.tick()
    assert (tick.renewed, tick.lost) == (2, 1)
    assert calls_before_the_loss == [1]
    assert other.calls == []


def test_a_stall_while_waiting_for_a_slow_source_is_noticed_after_the_current_call(
    clock, keeper
):
    source = FakeSource(clock, renew_batch=1)
    stalling = source.lease("stalling", seconds=90)
    calls_before_the_loss: list[int] = []
    stalling.on_lost(lambda lease: calls_before_the_loss.append(len(source.calls)))
    for lease in source.leases(5, seconds=90):
        keeper.hold(lease)
    keeper.hold(stalling, stall_seconds=32)
    source.before_answering = lambda: clock.advance(3)
    clock.advance(30)
    keeper.tick()
    assert calls_before_the_loss == [1]


def test_the_most_urgent_lease_goes_first(clock, keeper):
    calm, urgent = FakeSource(clock, "calm"), FakeSource(clock, "urgent")
    keeper.hold(calm.lease(seconds=600))
    clock.advance(185)
    keeper.hold(urgent.lease(seconds=60))
    clock.advance(20)  # the calm lease is due for longer, but the urgent one ends sooner
    order: list[str] = []
    calm.before_answering = lambda: order.append("calm")
    urgent.before_answering = lambda: order.append("urgent")
    keeper.tick()
    assert order == ["urgent", "calm"]


def test_a_source_slower_than_the_interval_does_not_prolong_a_pass_forever(clock, keeper):
    source = FakeSource(clock, renew_batch=1)
    for lease in source.leases(2, seconds=60):
        keeper.hold(lease)
    source.before_answering = lambda: clock.advance(25)
    clock.advance(20)
    keeper.tick()
    assert len(source.calls) == 2


# -- capped


def test_twelve_hours_of_renewals_end_at_the_cap_with_a_warning(clock, source, keeper, seen):
    start = clock.monotonic()
    lease = source.lease(seconds=60, cap_seconds=TWELVE_HOURS)
    keeper.hold(lease)
    let_pass(clock, keeper, TWELVE_HOURS - 1)
    assert lease.state is LeaseState.HELD
    assert len(source.calls) == pytest.approx(TWELVE_HOURS / 20, abs=3)
    let_pass(clock, keeper, 1)
    assert lease.state is LeaseState.LOST
    assert lease.reason == "its cap of 43200 s is reached"
    assert max(call.at + call.seconds for call in source.calls) == start + TWELVE_HOURS
    assert select(NearCap, seen) == [NearCap("fake", "m", 1, left_seconds=60)]


def test_the_cap_warning_comes_cap_warning_seconds_before_the_cap(clock, source, seen):
    keeper = LeaseKeeper(clock, Events(seen.append), cap_warning_seconds=300)
    keeper.hold(source.lease(seconds=60, cap_seconds=3_600))
    let_pass(clock, keeper, 3_299)
    assert select(NearCap, seen) == []
    let_pass(clock, keeper, 1)
    assert select(NearCap, seen) == [NearCap("fake", "m", 1, left_seconds=300)]
    let_pass(clock, keeper, 300)
    assert len(select(NearCap, seen)) == 1


def test_a_cap_inside_the_first_lease_warns_at_once(clock, source, keeper, seen):
    keeper.hold(source.lease(seconds=60, cap_seconds=30))
    keeper.tick()
    assert select(NearCap, seen) == [NearCap("fake", "m", 1, left_seconds=30)]
    let_pass(clock, keeper, 30)
    assert len(select(MessageLeaseLost, seen)) == 1
    assert source.calls == []


def test_leases_near_their_caps_still_share_calls(clock, source, keeper):
    for number in range(50):
        keeper.hold(source.lease(f"m{number}", seconds=60, cap_seconds=100))
        clock.advance(0.01)
    let_pass(clock, keeper, 110)
    assert len(source.calls) <= 20


def test_an_outage_just_before_the_cap_is_not_blamed_on_the_cap(clock, source, keeper):
    lease = source.lease(seconds=60, cap_seconds=200)
    keeper.hold(lease)
    source.answer = make_failing_answer("throttled")
    let_pass(clock, keeper, 61)
    assert "throttled" in lease.reason


# -- stalled


def test_work_that_never_beats_is_given_up_after_the_stall_time(clock, source, keeper, seen):
    lease = source.lease(seconds=60)
    keeper.hold(lease, stall_seconds=45)
    let_pass(clock, keeper, 44.9)
    assert lease.live
    let_pass(clock, keeper, 0.1)
    assert select(MessageLeaseLost, seen) == [
        MessageLeaseLost("fake", "m", 1, "stalled: no beat for 45 s")
    ]
    calls = len(source.calls)
    let_pass(clock, keeper, 600)
    assert len(source.calls) == calls


def test_work_that_beats_is_kept(clock, source, keeper):
    lease = source.lease(seconds=60)
    keeper.hold(lease, stall_seconds=10)
    for _ in range(100):
        let_pass(clock, keeper, 9)
        lease.beat(clock.monotonic())
    assert lease.state is LeaseState.HELD


def test_the_stall_time_counts_from_the_hold_that_names_it(clock, source, keeper):
    lease = source.lease(seconds=60)
    keeper.hold(lease)  # before its slot starts to work
    let_pass(clock, keeper, 300)
    keeper.hold(lease, stall_seconds=5)
    let_pass(clock, keeper, 4.9)
    assert lease.live
    keeper.hold(lease, stall_seconds=5)  # holding again is not a beat
    let_pass(clock, keeper, 0.2)
    assert lease.reason == "stalled: no beat for 5 s"


def test_stalled_work_is_not_renewed_when_its_stall_is_noticed_late(clock, source, keeper):
    lease = source.lease(seconds=60)
    keeper.hold(lease, stall_seconds=10)
    clock.advance(20)  # the renewal is due, but the stall came first
    keeper.tick()
    assert source.calls == []
    assert lease.state is LeaseState.LOST


def test_a_lease_that_stalls_while_it_waits_for_its_batch_is_not_renewed(clock, keeper):
    source = FakeSource(clock, renew_batch=1)
    first, second = source.lease("first"), source.lease("second")
    keeper.hold(first)
    keeper.hold(second, stall_seconds=22)
    source.before_answering = lambda: clock.advance(3)
    clock.advance(20)
    keeper.tick()
    assert source.asked == ["first"]
    assert second.reason == "stalled: no beat for 22 s"
