"""The keeper's invariants under any mix of faults, freezes and work."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)
from lease_source import FakeSource, let_pass

from holdfast.events import Event, Events, MessageLeaseLost
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import RENEWED, Lease, LeaseState, Refused, Renewal, Unanswered
from holdfast.lease.renewal_schedule import compute_loss_time
from holdfast.testing.clock import ManualClock


class World(RuleBasedStateMachine):
    """One keeper, two sources that know when leases end, and every kind of fault."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.gone: Counter[str] = Counter()
        self.keeper = LeaseKeeper(self.clock, Events(self.note))
        self.sources = [FakeSource(self.clock, "one", 10), FakeSource(self.clock, "two", 1)]
        self.leases: list[Lease] = []
        self.answers = ["yes"]
        self.latency = 0.0
        for source in self.sources:
            source.answer = self.answer
            source.before_answering = lambda: self.clock.advance(self.latency)

    def note(self, event: Event) -> None:
        if isinstance(event, MessageLeaseLost):
            self.gone[event.message_id] += 1

    def answer(self, lease: Lease) -> Renewal:
        now = self.clock.monotonic()
        source = lease.source
        assert isinstance(source, FakeSource)
        if now >= source.ends_at[lease]:
            return Refused("taken over")
        self.answers.append(self.answers.pop(0))
        match self.answers[0]:
            case "yes":
                return RENEWED
            case "yes, but the answer is lost":
                source.ends_at[lease] = now + lease.seconds
                return Unanswered("timeout")
            case "no":
                source.ends_at[lease] = now
                return Refused("handle is invalid")
            case _:
                return Unanswered("throttled")

    @rule(
        target=held,
        count=st.integers(1, 12),
        source=st.integers(0, 1),
        seconds=st.sampled_from([9, 10.5, 60]),
        cap_seconds=st.none() | st.floats(5, 400),
        stall_seconds=st.none() | st.floats(1, 100),
    )
    def hold(self, count, source, seconds, cap_seconds, stall_seconds):
        made = []
        for _ in range(count):
            name = f"m{len(self.leases)}"
            lease = self.sources[source].lease(name, seconds, cap_seconds)
            self.leases.append(lease)
            self.keeper.hold(lease, stall_seconds=stall_seconds)
            made.append(lease)
        return multiple(*made)

    @rule(lease=held)
    def hold_again(self, lease):
        self.keeper.hold(lease)

    @rule(lease=held)
    def beat(self, lease):
        lease.beat(self.clock.monotonic())

    @rule(lease=consumes(held))
    def release(self, lease):
        lease.release()

    @rule(seconds=st.floats(0, 120))
    def time_passes(self, seconds):
        let_pass(self.clock, self.keeper, seconds)

    @rule(seconds=st.floats(0, 120))
    def everything_freezes(self, seconds):
        self.clock.advance(seconds)

    @rule(
        answers=st.lists(
            st.sampled_from(["yes", "yes", "yes, but the answer is lost", "unanswered", "no"]),
            min_size=1,
            max_size=4,
        )
    )
    def the_responses_change(self, answers):
        self.answers = answers

    @rule(latency=st.sampled_from([0.0, 0.0, 0.1, 5.0, 30.0]))
    def the_network_changes(self, latency):
        self.latency = latency

    @invariant()
    def a_lease_that_seems_live_is_live_at_its_source(self):
        now = self.clock.monotonic()
        for lease in self.leases:
            if lease.live and now < lease.deadline:
                assert lease.source.ends_at[lease] > now

    @invariant()
    def loss_is_never_silent(self):
        self.keeper.tick()
        now = self.clock.monotonic()
        for lease in self.leases:
            assert not lease.live or now < compute_loss_time(lease)
            assert self.gone[lease.message_id] == (lease.state is LeaseState.LOST)

    @invariant()
    def no_source_is_called_for_a_dead_lease(self):
        for source in self.sources:
            assert source.misuse == []
            for call in source.calls:
                for lease in call.leases:
                    assert lease.cap_at is None or call.at + call.seconds <= lease.cap_at + 1e-6

    @invariant()
    def the_keeper_holds_what_is_live(self):
        assert self.keeper.held == sum(lease.live for lease in self.leases)


World.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestWorld = World.TestCase


@settings(max_examples=60, deadline=None)
@given(
    seconds=st.sampled_from([0.3, 9, 60, 600]),
    starts_at=st.floats(0, 3),
    lasts=st.floats(0, 1),
)
def test_an_outage_shorter_than_lease_minus_interval_never_loses_a_lease(
    seconds, starts_at, lasts
):
    clock = ManualClock()
    source = FakeSource(clock)
    keeper = LeaseKeeper(clock)
    lease = source.lease(seconds=seconds)
    keeper.hold(lease)
    let_pass(clock, keeper, starts_at * seconds)
    source.answer = lambda lease: Unanswered("throttled")
    let_pass(clock, keeper, lasts * seconds * (2 / 3 - 0.011))
    source.answer = lambda lease: RENEWED
    let_pass(clock, keeper, 3 * seconds)
    assert lease.state is LeaseState.HELD


@settings(max_examples=40, deadline=None)
@given(
    seconds=st.floats(0.1, 900),
    latency_share=st.floats(0, 0.3),
    renew_after=st.floats(0.1, 0.6),
)
def test_the_gap_between_renewals_stays_below_the_lease(seconds, latency_share, renew_after):
    clock = ManualClock()
    source = FakeSource(clock)
    source.before_answering = lambda: clock.advance(latency_share * seconds)
    keeper = LeaseKeeper(clock, renew_after=renew_after)
    lease = source.lease(seconds=seconds)
    keeper.hold(lease)
    let_pass(clock, keeper, 20 * seconds)
    times = [lease.claimed_at, *(call.at for call in source.calls)]
    assert max(b - a for a, b in pairwise(times)) < seconds
    assert lease.state is LeaseState.HELD


@pytest.mark.parametrize("seconds", [30, 60, 900])
@settings(max_examples=10, deadline=None)
@given(cap_seconds=st.floats(60, 43_200))
def test_no_extension_in_sum_exceeds_the_cap(seconds, cap_seconds):
    clock = ManualClock()
    source = FakeSource(clock)
    keeper = LeaseKeeper(clock)
    lease = source.lease(seconds=seconds, cap_seconds=cap_seconds)
    keeper.hold(lease)
    let_pass(clock, keeper, cap_seconds - 2)
    assert lease.live
    let_pass(clock, keeper, 2)
    assert lease.state is LeaseState.LOST
    for call in source.calls:
        assert call.at + call.seconds <= lease.claimed_at + cap_seconds
