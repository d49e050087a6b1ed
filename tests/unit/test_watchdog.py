"""The rules by which the watchdog judges, without any process."""

import pytest

from holdfast.core.worker.watchdog import SignsOfLife, WatchdogLimits

ALL = WatchdogLimits(stall_seconds=10.0, timeout_seconds=100.0, pulse_seconds=30.0)


def signs(*, started: float = 0.0, pulsed: float = 0.0, moved: float = 0.0) -> SignsOfLife:
    return SignsOfLife(started, pulsed, moved)


@pytest.mark.parametrize(
    ("seen", "now", "reason"),
    [
        (signs(), 0.0, None),
        (signs(), 9.9, None),
        (signs(), 10.0, "stalled: no beat for 10 s"),
        (signs(moved=25.0), 29.9, None),
        (signs(moved=25.0), 30.0, "the worker process did not answer for 30 s"),
        (signs(moved=95.0, pulsed=95.0), 99.9, None),
        (signs(moved=99.0, pulsed=99.0), 100.0, "timed out after 100 s"),
    ],
)
def test_a_sign_may_be_missing_for_its_limit_and_no_longer(
    seen: SignsOfLife, now: float, reason: str | None
) -> None:
    assert seen.missing(ALL, now) == reason


def test_without_limits_only_the_pulse_counts() -> None:
    limits = WatchdogLimits(pulse_seconds=30.0)
    assert signs(pulsed=1e6).missing(limits, 1e6 + 29.0) is None
    assert signs(pulsed=1e6).missing(limits, 1e6 + 31.0) is not None


@pytest.mark.parametrize("lease_seconds", [0.2, 1.0, 60.0, 43_200.0])
@pytest.mark.parametrize("limits", [ALL, WatchdogLimits(), WatchdogLimits(stall_seconds=0.5)])
def test_it_looks_and_the_child_pulses_often_enough_for_every_limit(
    limits: WatchdogLimits, lease_seconds: float
) -> None:
    shortest = min(limits.stall_seconds or 1e9, limits.pulse_seconds, lease_seconds)
    assert limits.pulse_interval(lease_seconds) <= shortest / 4
    assert limits.tick_seconds(lease_seconds) <= shortest / 4
    assert limits.tick_seconds(lease_seconds) <= 0.25
