"""The keeper without faults: when it renews, which leases, and in which batches."""

import gc
from math import inf
from weakref import ref

import pytest
from lease_source import FakeSource, let_pass

from holdfast.events import Event, Events, LeaseRenewed
from holdfast.lease.keeper import LeaseKeeper, Tick
from holdfast.lease.lease import RENEWED, Lease, LeaseState, Refused, Renewal, Unanswered
from holdfast.testing.clock import ManualClock


@pytest.fixture
def source(clock: ManualClock) -> FakeSource:
    return FakeSource(clock)


@pytest.fixture
def seen() -> list[Event]:
    return []


@pytest.fixture
def keeper(clock: ManualClock, seen: list[Event]) -> LeaseKeeper:
    return LeaseKeeper(clock, Events(seen.append))


# -- the time of renewals


@pytest.mark.requirement("R003-040")
def test_a_lease_is_renewed_each_third_of_it_for_as_long_as_it_is_held(clock, source, keeper):
    lease = source.lease(seconds=60)
    start = clock.monotonic()
    keeper.hold(lease)
    let_pass(clock, keeper, 600)
    assert [call.at - start for call in source.calls] == pytest.approx(range(20, 601, 20))
    assert {call.seconds for call in source.calls} == {60}
    assert lease.state is LeaseState.HELD


def test_no_renewal_is_requested_before_it_is_due(clock, source, keeper):
    keeper.hold(source.lease(seconds=60))
    clock.advance(19.9)
    assert keeper.tick() == Tick(0, 0, 0, next_at=pytest.approx(clock.monotonic() + 0.1))
    assert source.calls == []


def test_a_keeper_that_holds_nothing_has_nothing_to_wait_for(keeper):
    assert keeper.tick() == Tick(renewed=0, at_risk=0, lost=0, next_at=inf)


def test_a_lease_held_late_is_renewed_at_once_because_it_runs_since_the_claim(
    clock, source, keeper
):
    lease = source.lease(seconds=60)
    clock.advance(45)
    keeper.hold(lease)
    assert keeper.tick().renewed == 1
    assert lease.deadline == clock.monotonic() + 60


def test_trust_counts_from_before_the_call(clock, source, keeper):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    clock.advance(20)
    asked_at = clock.monotonic()
    source.before_answering = lambda: clock.advance(7)
    keeper.tick()
    assert lease.deadline == asked_at + 60
    assert keeper.tick().next_at == pytest.approx(asked_at + 20)


def test_a_lease_the_handler_extended_is_not_renewed_until_it_is_due_again(
    clock, source, keeper
):
    lease = source.lease(seconds=60)
    keeper.hold(lease)
    now = clock.monotonic()
    lease.apply_renewal(RENEWED, asked_at=now, now=now, seconds=600)
    let_pass(clock, keeper, 500)
    assert source.calls == []
    let_pass(clock, keeper, 61)
    assert source.asked == ["m"]


def test_renew_after_sets_the_interval(clock, source):
    keeper = LeaseKeeper(clock, renew_after=0.5)
    keeper.hold(source.lease(seconds=60))
    assert keeper.tick().next_at == pytest.approx(clock.monotonic() + 30)


def test_every_pass_renews_a_lease(clock, source):
    keeper = LeaseKeeper(clock, renew_after=0.4)
    keeper.hold(source.lease(seconds=60))
    ticks = let_pass(clock, keeper, 600)
    assert [tick.renewed for tick in ticks] == [0] + [1] * 25


@pytest.mark.parametrize("renew_after", [0, 1, -1, 2, float("nan")])
def test_renew_after_must_be_between_zero_and_one(renew_after):
    with pytest.raises(ValueError, match="renew_after"):
        LeaseKeeper(renew_after=renew_after)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_cap_warning_seconds_must_not_be_negative(seconds):
    with pytest.raises(ValueError, match="cap_warning_seconds"):
        LeaseKeeper(cap_warning_seconds=seconds)


# -- which leases are renewed


def test_holding_a_lease_twice_has_no_further_effect(clock, source, keeper):
    lease = source.lease()
    keeper.hold(lease)
    keeper.hold(lease)
    assert keeper.held == 1
    let_pass(clock, keeper, 20)
    keeper.hold(lease)
    keeper.tick()
    assert source.asked == ["m"]


def test_a_released_lease_is_never_renewed_and_is_forgotten(clock, source, keeper):
    kept, done = source.lease("kept"), source.lease("done")
    keeper.hold(kept)
    keeper.hold(done)
    done.release()
    assert keeper.held == 1
    let_pass(clock, keeper, 600)
    assert set(source.asked) == {"kept"}


def test_a_lease_released_during_another_batch_is_not_renewed(clock, keeper):
    source = FakeSource(clock, renew_batch=1)
    first, second = source.lease("first"), source.lease("second")
    keeper.hold(first)
    keeper.hold(second)
    source.before_answering = lambda: bool(second.release())
    clock.advance(20)
    assert keeper.tick().renewed == 1
    assert source.asked == ["first"]


@pytest.mark.parametrize("answer", [Refused("handle is invalid"), Unanswered("throttled")])
def test_a_release_during_the_renewal_is_not_an_error(clock, source, keeper, seen, answer):
    lease = source.lease()
    keeper.hold(lease)
    source.before_answering = lambda: bool(lease.release())
    source.answer = lambda lease: answer
    clock.advance(20)
    tick = keeper.tick()
    assert (tick.renewed, tick.at_risk, tick.lost, tick.next_at) == (0, 0, 0, inf)
    assert lease.state is LeaseState.RELEASED
    assert seen == []
    assert keeper.held == 0


@pytest.mark.parametrize("end", [Lease.release, lambda lease: lease.lose("gone")])
def test_holding_a_lost_or_released_lease_does_nothing(source, keeper, seen, end):
    lease = source.lease()
    end(lease)
    keeper.hold(lease)
    assert keeper.held == 0
    assert keeper.tick().next_at == inf
    assert seen == []


# -- batches


def test_ten_thousand_leases_cost_a_thousand_calls(clock, source, keeper):
    for lease in source.leases(10_000):
        keeper.hold(lease)
    clock.advance(20)
    assert keeper.tick().renewed == 10_000
    assert len(source.calls) == 1_000


def test_leases_claimed_one_by_one_still_fill_their_batches(clock, source, keeper):
    for number in range(2_000):
        keeper.hold(source.lease(f"m{number}"))
        clock.advance(0.01)  # 2,000 over the 20 s of one interval
    source.calls.clear()
    ticks = let_pass(clock, keeper, 20)
    assert sum(tick.renewed for tick in ticks) == pytest.approx(2_000, rel=0.02)
    assert len(source.calls) <= 210


def test_leases_due_soon_join_the_batch_and_later_ones_wait(clock, source, keeper):
    keeper.hold(source.lease("due"))
    clock.advance(1.9)  # 10 % of the interval is 2 s
    keeper.hold(source.lease("soon"))
    clock.advance(0.2)
    keeper.hold(source.lease("later"))
    clock.advance(17.9)
    keeper.tick()
    assert [len(call.leases) for call in source.calls] == [2]
    assert source.asked == ["due", "soon"]


def test_early_renewals_only_fill_a_call_that_is_made_anyway(clock, source, keeper):
    for number in range(25):
        keeper.hold(source.lease(f"m{number}"))
        clock.advance(0.01)
    clock.advance(20 - 0.245)
    keeper.tick()  # only m0 is due
    assert [len(call.leases) for call in source.calls] == [10]


def test_each_source_and_each_length_has_its_own_calls(clock, keeper):
    mail, files = FakeSource(clock, "mail"), FakeSource(clock, "files")
    for lease in [*mail.leases(3, 60), *files.leases(4, 60), *mail.leases(2, 30)]:
        keeper.hold(lease)
    clock.advance(20)
    assert keeper.tick().renewed == 9
    assert sorted((len(call.leases), call.seconds) for call in mail.calls) == [(2, 30), (3, 60)]
    assert [(len(call.leases), call.seconds) for call in files.calls] == [(4, 60)]


def test_a_source_with_a_batch_of_one_gets_one_lease_per_call(clock, keeper):
    source = FakeSource(clock, renew_batch=1)
    for lease in source.leases(3):
        keeper.hold(lease)
    clock.advance(20)
    keeper.tick()
    assert [len(call.leases) for call in source.calls] == [1, 1, 1]


def test_one_refused_lease_does_not_affect_the_other_nine(clock, source, keeper):
    leases = source.leases(10)
    for lease in leases:
        keeper.hold(lease)
    bad = leases[3]
    answers: dict[Lease, Renewal] = {bad: Refused("handle is invalid")}
    source.answer = lambda lease: answers.get(lease, RENEWED)
    clock.advance(20)
    tick = keeper.tick()
    assert (tick.renewed, tick.lost) == (9, 1)
    assert bad.state is LeaseState.LOST
    assert bad.reason == "handle is invalid"
    clock.advance(20)
    assert keeper.tick().renewed == 9
    assert len(source.calls) == 2


def test_one_unanswered_lease_is_retried_without_the_other_nine(clock, source, keeper):
    leases = source.leases(10)
    for lease in leases:
        keeper.hold(lease)
    answers: dict[Lease, Renewal] = {leases[3]: Unanswered("throttled")}
    source.answer = lambda lease: answers.get(lease, RENEWED)
    clock.advance(20)
    tick = keeper.tick()
    assert (tick.renewed, tick.at_risk, tick.lost) == (9, 1, 0)
    answers.clear()
    let_pass(clock, keeper, 5)
    assert [lease.state for lease in leases] == [LeaseState.HELD] * 10
    assert [call.leases for call in source.calls[1:]] == [(leases[3],)]


# -- cost


def test_memory_follows_the_live_leases_not_the_throughput(source, keeper):
    gone = []
    for number in range(20_000):
        lease = source.lease(f"m{number}")
        source.ends_at.clear()
        keeper.hold(lease)
        gone.append(ref(lease))
        lease.release()
    del lease
    gc.collect()
    assert sum(lease() is not None for lease in gone) <= 1_100


def test_many_live_leases_survive_the_sweeps(clock, source, keeper):
    kept = source.leases(3_000)
    for number, lease in enumerate(kept):
        keeper.hold(lease)
        keeper.hold(passing := source.lease(f"passing {number}"))
        passing.release()
    assert keeper.held == 3_000
    clock.advance(20)
    assert keeper.tick().renewed == 3_000


def test_each_renewal_reports_how_late_it_was(clock, source, keeper, seen):
    keeper.hold(source.lease(seconds=60))
    clock.advance(23)
    keeper.tick()
    [renewed] = seen
    assert renewed == LeaseRenewed("fake", "m", 1, late_seconds=pytest.approx(3))
