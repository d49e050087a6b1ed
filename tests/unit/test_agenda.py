"""The rules behind the keeper: how long to ask for, when to retry, why a lease is over."""

from random import Random

import pytest
from fake_source import FakeSource
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lease.lease import Lease
from holdfast.core.lease.renewal_schedule import retry_delay, seconds_to_ask, why_over
from holdfast.testing.clock import ManualClock

lengths = st.one_of(st.integers(1, 3_600), st.floats(0.01, 3_600))


def lease(seconds: float, cap_seconds: float | None = None) -> Lease:
    return FakeSource(ManualClock(monotonic=0)).lease(seconds=seconds, cap_seconds=cap_seconds)


def test_without_a_cap_the_whole_lease_is_asked_for():
    assert seconds_to_ask(lease(60), now=1e6) == 60


def test_near_the_cap_only_the_rest_is_asked_for_in_whole_seconds():
    assert seconds_to_ask(lease(60, cap_seconds=100), now=20.5) == 60
    assert seconds_to_ask(lease(60, cap_seconds=100), now=39.5) == 60
    assert seconds_to_ask(lease(60, cap_seconds=75), now=39.5) == 35


def test_what_gains_less_than_a_second_is_not_asked_for():
    assert seconds_to_ask(lease(60, cap_seconds=60), now=20) == 0
    assert seconds_to_ask(lease(60, cap_seconds=60.9), now=20) == 0
    assert seconds_to_ask(lease(60, cap_seconds=61), now=20) == 41


@given(seconds=lengths, cap_seconds=lengths, share=st.floats(0, 1))
def test_no_request_reaches_beyond_the_cap_or_behind_the_deadline(seconds, cap_seconds, share):
    capped = lease(seconds, cap_seconds)
    now = share * min(seconds, cap_seconds)
    asked = seconds_to_ask(capped, now)
    assert asked >= 0
    if asked:
        assert now + asked <= cap_seconds + 1e-9
        assert now + asked >= capped.deadline - 1e-9 or asked == seconds


@given(seconds=st.integers(1, 3_600), cap_seconds=lengths, share=st.floats(0, 1))
def test_a_source_of_whole_seconds_is_never_asked_for_fractions(seconds, cap_seconds, share):
    asked = seconds_to_ask(lease(seconds, cap_seconds), share * seconds)
    assert asked == int(asked)


@given(
    tries=st.integers(1, 10_000),
    left_share=st.floats(0, 1),
    seconds=st.floats(0.01, 43_200),
    seed=st.integers(0, 100),
)
def test_a_retry_comes_within_half_of_what_is_left_but_never_at_once(
    tries, left_share, seconds, seed
):
    delay = retry_delay(tries, left_share * seconds, seconds, Random(seed))
    assert seconds * 0.005 <= delay <= max(left_share * seconds / 2, seconds * 0.005)


def test_retries_are_spread_by_jitter():
    random = Random(1)
    assert len({retry_delay(3, 40, 60, random) for _ in range(10)}) == 10


def test_a_good_lease_is_not_over():
    assert why_over(lease(60), now=59.9) is None


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
def test_a_lease_that_is_over_says_why(cap_seconds, stall_seconds, now, reason):
    over = lease(60, cap_seconds)
    over.stall_seconds = stall_seconds
    assert why_over(over, now) == reason
