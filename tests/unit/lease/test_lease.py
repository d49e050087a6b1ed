"""The state machine of a lease."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lease_source import FakeSource

from holdfast.errors import LeaseLost
from holdfast.lease.lease import RENEWED, Lease, LeaseState, Refused, Renewal, Unanswered
from holdfast.testing.clock import ManualClock

RENEWALS = [RENEWED, Refused("superseded"), Unanswered("throttled")]


@pytest.fixture
def lease() -> Lease:
    """Return a lease that was claimed at 0 and is good until 60."""
    return FakeSource(ManualClock(monotonic=0)).lease(seconds=60)


def renew(lease: Lease, renewal: Renewal, *, asked_at: float, now: float) -> LeaseState:
    return lease.apply_renewal(renewal, asked_at=asked_at, now=now, seconds=60)


def test_a_new_lease_is_held_until_its_deadline(lease):
    assert lease.state is LeaseState.HELD
    assert lease.deadline == 60
    lease.check(59.9)
    assert lease.live


def test_a_renewal_counts_from_before_the_call(lease):
    assert renew(lease, RENEWED, asked_at=20, now=25) is LeaseState.HELD
    assert lease.deadline == 80


def test_a_missing_response_leaves_the_lease_at_risk_until_the_next_one(lease):
    assert renew(lease, Unanswered("throttled"), asked_at=20, now=20) is LeaseState.AT_RISK
    assert lease.deadline == 60
    assert lease.live
    assert renew(lease, RENEWED, asked_at=21, now=21) is LeaseState.HELD


def test_a_refusal_loses_the_lease_at_once(lease):
    assert renew(lease, Refused("superseded"), asked_at=20, now=20) is LeaseState.LOST
    assert lease.reason == "superseded"


@pytest.mark.parametrize("renewal", [RENEWED, Unanswered("timeout")])
def test_a_response_after_the_deadline_loses_the_lease(lease, renewal):
    assert renew(lease, renewal, asked_at=59, now=60) is LeaseState.LOST
    assert lease.deadline == 60


def test_checking_past_the_deadline_loses_the_lease(lease):
    with pytest.raises(LeaseLost, match="'m' is lost: its deadline passed"):
        lease.check(60)
    assert lease.lost.is_set()
    with pytest.raises(LeaseLost):
        lease.check(0)


def test_a_released_lease_is_not_lost_by_its_deadline(lease):
    assert lease.release()
    lease.check(1_000)
    assert lease.state is LeaseState.RELEASED
    assert not lease.lost.is_set()


def test_a_refusal_after_the_release_is_not_a_loss(lease):
    lease.on_lost(lambda lease: pytest.fail("not lost"))
    lease.release()
    assert renew(lease, Refused("gone"), asked_at=1, now=1) is LeaseState.RELEASED


def test_the_lost_event_is_set_whether_it_is_read_before_or_after_the_loss(lease):
    before = lease.lost
    assert not before.is_set()
    lease.lose("taken over")
    assert before.is_set()
    assert lease.lost is before


def test_an_event_made_after_the_loss_is_set(lease):
    lease.lose("taken over")
    assert lease.lost.is_set()


def test_each_callback_is_called_once_and_sees_the_reason(lease):
    calls: list[str] = []
    lease.on_lost(lambda lease: calls.append(f"first: {lease.reason}"))
    lease.on_lost(lambda lease: calls.append(f"second: {lease.reason}"))
    assert lease.lose("taken over") is True
    assert lease.lose("again") is False
    assert calls == ["first: taken over", "second: taken over"]


def test_a_callback_added_after_the_loss_is_called_at_once(lease):
    lease.lose("taken over")
    calls: list[Lease] = []
    lease.on_lost(calls.append)
    assert calls == [lease]


def test_a_callback_may_use_the_lease(lease):
    def callback(lease: Lease) -> None:
        assert lease.lost.is_set()
        assert not lease.release()
        assert not lease.lose("again")
        lease.on_lost(lambda lease: None)

    lease.on_lost(callback)
    assert lease.lose("taken over")


def test_the_receipt_is_not_printed(lease):
    assert "receipt" not in repr(lease)
    with pytest.raises(LeaseLost) as error:
        lease.check(60)
    assert "receipt" not in str(error.value)


class LeaseLife(RuleBasedStateMachine):
    """Any order of renewals, losses, releases and time, checked against the invariants."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.lease = FakeSource(ManualClock(monotonic=0)).lease(seconds=60)
        self.registered = self.called = 0
        self.final: tuple[LeaseState, str, float] | None = None

    def count_call(self, lease: Lease) -> None:
        assert lease is self.lease
        self.called += 1

    @rule(seconds=st.floats(0, 50))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(renewal=st.sampled_from(RENEWALS), ago=st.floats(0, 90))
    def apply_renewal(self, renewal, ago):
        deadline, live = self.lease.deadline, self.lease.live
        asked_at = self.now - ago
        state = self.lease.apply_renewal(renewal, asked_at=asked_at, now=self.now, seconds=60)
        moved = self.lease.deadline != deadline
        assert not moved or (renewal is RENEWED and live and self.now < deadline)
        assert not moved or self.lease.deadline == asked_at + 60
        if live and self.now >= deadline:
            assert state is LeaseState.LOST

    @rule()
    def check(self):
        try:
            self.lease.check(self.now)
        except LeaseLost:
            assert self.lease.state is LeaseState.LOST
        else:
            released = self.lease.state is LeaseState.RELEASED
            assert released or self.now < self.lease.deadline

    @rule()
    def lose(self):
        live = self.lease.live
        assert self.lease.lose("taken over") is live

    @rule()
    def release(self):
        live = self.lease.live
        assert self.lease.release() is live

    @rule()
    def watch(self):
        self.registered += self.lease.state is not LeaseState.RELEASED
        self.lease.on_lost(self.count_call)

    @invariant()
    def a_final_state_never_changes(self):
        if not self.lease.live:
            end = (self.lease.state, self.lease.reason, self.lease.deadline)
            self.final = self.final or end
            assert end == self.final

    @invariant()
    def each_callback_runs_once_after_a_loss_and_never_otherwise(self):
        lost = self.lease.state is LeaseState.LOST
        assert self.called == (self.registered if lost else 0)
        assert self.lease.lost.is_set() == lost


LeaseLife.TestCase.settings = settings(max_examples=100, deadline=None)
TestLeaseLife = LeaseLife.TestCase


@given(asked_at=st.floats(-60, 59), took=st.floats(0, 200))
def test_only_responses_before_the_deadline_move_it(asked_at, took):
    lease = FakeSource(ManualClock(monotonic=0)).lease(seconds=60)
    now = max(0.0, asked_at + took)
    renew(lease, RENEWED, asked_at=asked_at, now=now)
    assert lease.deadline == (asked_at + 60 if now < 60 else 60)
