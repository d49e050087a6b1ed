"""The limits of liveness, without any process."""

from math import inf

import pytest

from holdfast.process.liveness import LivenessLimits

ALL = LivenessLimits(stall_seconds=10.0, timeout_seconds=100.0, pulse_seconds=30.0)


@pytest.mark.parametrize(
    ("beat_at", "now", "reason"),
    [
        (0.0, 0.0, None),
        (0.0, 9.9, None),
        (0.0, 10.0, "stalled: no beat for 10 s"),
        (95.0, 99.9, None),
        (99.0, 100.0, "timed out after 100 s"),
    ],
)
def test_a_sign_may_be_missing_for_its_limit_and_no_longer(
    beat_at: float, now: float, reason: str | None
) -> None:
    assert ALL.find_missing(now, 0.0, beat_at) == reason


def test_without_limits_work_may_take_forever() -> None:
    limits = LivenessLimits(pulse_seconds=30.0)
    assert limits.find_missing(1e9, 0.0, 0.0) is None
    assert limits.compute_seconds_left(1e9, 0.0, 0.0) == inf


@pytest.mark.parametrize("lease_seconds", [0.2, 1.0, 60.0, 43_200.0])
@pytest.mark.parametrize("limits", [ALL, LivenessLimits(), LivenessLimits(stall_seconds=0.5)])
def test_checks_and_pulses_are_frequent_enough_for_every_limit(
    limits: LivenessLimits, lease_seconds: float
) -> None:
    shortest = min(limits.stall_seconds or 1e9, limits.pulse_seconds, lease_seconds)
    assert limits.compute_pulse_seconds(lease_seconds) <= shortest / 4
    assert limits.compute_tick_seconds(lease_seconds) <= shortest / 4
    assert limits.compute_tick_seconds(lease_seconds) <= 0.25
