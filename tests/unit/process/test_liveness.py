"""The limits of liveness and the signs of life, without any process."""

import pytest

from holdfast.process.liveness import LivenessLimits, SignsOfLife

ALL = LivenessLimits(stall_seconds=10.0, timeout_seconds=100.0, pulse_seconds=30.0)


def make_signs(*, started: float = 0.0, pulse: float = 0.0, beat: float = 0.0) -> SignsOfLife:
    return SignsOfLife(started, pulse, beat)


@pytest.mark.parametrize(
    ("seen", "now", "reason"),
    [
        (make_signs(), 0.0, None),
        (make_signs(), 9.9, None),
        (make_signs(), 10.0, "stalled: no beat for 10 s"),
        (make_signs(beat=25.0), 29.9, None),
        (make_signs(beat=25.0), 30.0, "the worker process did not answer for 30 s"),
        (make_signs(beat=95.0, pulse=95.0), 99.9, None),
        (make_signs(beat=99.0, pulse=99.0), 100.0, "timed out after 100 s"),
    ],
)
def test_a_sign_may_be_missing_for_its_limit_and_no_longer(
    seen: SignsOfLife, now: float, reason: str | None
) -> None:
    assert seen.find_missing(ALL, now) == reason


def test_without_limits_only_the_pulse_counts() -> None:
    limits = LivenessLimits(pulse_seconds=30.0)
    assert make_signs(pulse=1e6).find_missing(limits, 1e6 + 29.0) is None
    assert make_signs(pulse=1e6).find_missing(limits, 1e6 + 31.0) is not None


@pytest.mark.parametrize("lease_seconds", [0.2, 1.0, 60.0, 43_200.0])
@pytest.mark.parametrize("limits", [ALL, LivenessLimits(), LivenessLimits(stall_seconds=0.5)])
def test_checks_and_pulses_are_frequent_enough_for_every_limit(
    limits: LivenessLimits, lease_seconds: float
) -> None:
    shortest = min(limits.stall_seconds or 1e9, limits.pulse_seconds, lease_seconds)
    assert limits.compute_pulse_seconds(lease_seconds) <= shortest / 4
    assert limits.compute_tick_seconds(lease_seconds) <= shortest / 4
    assert limits.compute_tick_seconds(lease_seconds) <= 0.25
