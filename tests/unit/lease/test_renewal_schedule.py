"""The keeper's rules: how many seconds to request, when to retry, why a lease is lost."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_source import FakeSource

from holdfast.lease.lease import Lease
from holdfast.lease.renewal_schedule import (
    compute_renewal_seconds,
    compute_retry_delay,
    find_loss_reason,
)
from holdfast.testing.clock import ManualClock

lengths = st.one_of(st.integers(1, 3_600), st.floats(0.01, 3_600))


def lease(seconds: float, cap_seconds: float | None = None) -> Lease:
    return FakeSource(ManualClock(monotonic=0)).lease(seconds=seconds, cap_seconds=cap_seconds)


def test_without_a_cap_a_full_lease_is_requested():
    assert compute_renewal_seconds(lease(60), now=1e6) == 60


def test_near_the_cap_the_remaining_whole_seconds_are_requested():
    assert compute_renewal_seconds(lease(60, cap_seconds=100), now=20.5) == 60
    assert compute_renewal_seconds(lease(60, cap_seconds=100), now=39.5) == 60
    assert compute_renewal_seconds(lease(60, cap_seconds=75), now=39.5) == 35


def test_a_gain_of_less_than_a_second_is_not_requested():
    assert compute_renewal_seconds(lease(60, cap_seconds=60), now=20) == 0
    assert compute_renewal_seconds(lease(60, cap_seconds=60.9), now=20) == 0
    assert compute_renewal_seconds(lease(60, cap_seconds=61), now=20) == 41


@given(seconds=lengths, cap_seconds=lengths, share=st.floats(0, 1))
def test_no_request_ends_after_the_cap_or_before_the_deadline(seconds, cap_seconds, share):
    capped = lease(seconds, cap_seconds)
    now = share * min(seconds, cap_seconds)
    seconds_asked = compute_renewal_seconds(capped, now)
    assert seconds_asked >= 0
    if seconds_asked:
        assert now + seconds_asked <= cap_seconds + 1e-9
        assert now + seconds_asked >= capped.deadline - 1e-9 or seconds_asked == seconds


@given(seconds=st.integers(1, 3_600), cap_seconds=lengths, share=st.floats(0, 1))
def test_fractions_are_never_requested_from_a_source_of_whole_seconds(
    seconds, cap_seconds, share
):
    seconds_asked = compute_renewal_seconds(lease(seconds, cap_seconds), share * seconds)
    assert seconds_asked == int(seconds_asked)


@given(
    tries=st.integers(1, 10_000),
    left_share=st.floats(0, 1),
    seconds=st.floats(0.01, 43_200),
    seed=st.integers(0, 100),
)
def test_a_retry_comes_within_half_of_what_is_left_but_never_at_once(
    tries, left_share, seconds, seed
):
    delay = compute_retry_delay(tries, left_share * seconds, seconds, Random(seed))
    assert seconds * 0.005 <= delay <= max(left_share * seconds / 2, seconds * 0.005)


def test_retries_are_spread_by_jitter():
    random = Random(1)
    assert len({compute_retry_delay(3, 40, 60, random) for _ in range(10)}) == 10


def test_a_lease_before_its_deadline_has_no_loss_reason():
    assert find_loss_reason(lease(60), now=59.9) is None


@pytest.mark.parametrize(
    ("cap_seconds", "stall_seconds", "now", "reason"),
    [
        (None, None, 60, "its deadline passed before it could be renewed"),
        (None, 10, 10, "stalled: no beat for 10 s"),
        (None, 10, 60, "its deadline passed before it could be renewed"),
        (30, None, 30, "its cap of 30 s is reached"),
        (60.5, 10, 60, "its cap of 60.5 s is reached"),
        (90, None, 60, "its deadline passed before it could be renewed"),
        (90, None, 1_000, "its deadline passed before it could be renewed"),
    ],
)
def test_the_loss_reason_names_the_deadline_the_stall_or_the_cap(
    cap_seconds, stall_seconds, now, reason
):
    lost_lease = lease(60, cap_seconds)
    lost_lease.stall_seconds = stall_seconds
    assert find_loss_reason(lost_lease, now) == reason
