"""The rules of liveness: how long a child, or the work in it, may give no sign of life.

responding   its interpreter sends a pulse, which it cannot while stuck in C code
progressing  the work beats
in time      the work takes no longer than its timeout
"""

from dataclasses import dataclass
from math import inf

START_TIMEOUT_SECONDS = 120.0  # imports on a busy machine


@dataclass(frozen=True, slots=True)
class LivenessLimits:
    """How long each sign of life may be missing."""

    stall_seconds: float | None = None
    timeout_seconds: float | None = None
    pulse_seconds: float = 30.0
    kill_grace_seconds: float = 2.0

    def is_overdue(self, started_at: float, now: float) -> bool:
        """Return whether the work took too long."""
        return self.timeout_seconds is not None and now - started_at >= self.timeout_seconds

    def is_silent(self, last_pulse_at: float, now: float) -> bool:
        """Return whether the child sent no pulse for too long."""
        return now - last_pulse_at >= self.pulse_seconds

    def is_stalled(self, last_beat_at: float, now: float) -> bool:
        """Return whether the work did not beat for too long."""
        return self.stall_seconds is not None and now - last_beat_at >= self.stall_seconds

    def compute_seconds_left(self, started_at: float, last_beat_at: float, now: float) -> float:
        """Return the seconds until the work is overdue or stalled; infinity if it never is."""
        times = ((started_at, self.timeout_seconds), (last_beat_at, self.stall_seconds))
        return min((at + seconds for at, seconds in times if seconds), default=inf) - now

    def compute_tick_seconds(self, lease_seconds: float) -> float:
        """Return the seconds between two checks, short enough to enforce the shortest limit."""
        limits = (self.stall_seconds, self.timeout_seconds, self.pulse_seconds, lease_seconds)
        shortest = min(limit for limit in limits if limit is not None)
        return min(0.25, max(0.01, shortest / 10))

    def compute_pulse_seconds(self, lease_seconds: float = inf) -> float:
        """Return the seconds between two pulses of a child."""
        limits = (self.stall_seconds, self.pulse_seconds, lease_seconds)
        return min(1.0, *(limit / 4 for limit in limits if limit is not None))


@dataclass(slots=True)
class SignsOfLife:
    """When each sign of life of one piece of work was last seen."""

    started_at: float
    last_pulse_at: float
    last_beat_at: float

    def find_missing(self, limits: LivenessLimits, now: float) -> str | None:
        """Return the reason to end the work, or None while no limit is exceeded."""
        if limits.is_overdue(self.started_at, now):
            return f"timed out after {limits.timeout_seconds:g} s"
        if limits.is_silent(self.last_pulse_at, now):
            return f"the worker process did not answer for {limits.pulse_seconds:g} s"
        if limits.is_stalled(self.last_beat_at, now):
            return f"stalled: no beat for {limits.stall_seconds:g} s"
        return None
