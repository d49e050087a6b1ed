"""The rules of liveness: how long a child, or the work in it, may give no sign of life.

responding   its interpreter sends a pulse, which it cannot while stuck in C code
progressing  the work beats
in time      the work takes no longer than its timeout
"""

from dataclasses import dataclass
from math import inf


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

    def find_missing(self, now: float, started_at: float, last_beat_at: float) -> str | None:
        """Return the reason to end the work, or None while no limit of it is exceeded.

        Whether its process responds is checked by `ChildProcess`.
        """
        if self.is_overdue(started_at, now):
            return f"timed out after {self.timeout_seconds:g} s"
        if self.stall_seconds is not None and now - last_beat_at >= self.stall_seconds:
            return f"stalled: no beat for {self.stall_seconds:g} s"
        return None

    def compute_seconds_left(self, now: float, started_at: float, last_beat_at: float) -> float:
        """Return the seconds until the work is overdue or stalled; infinity if it never is."""
        times = ((started_at, self.timeout_seconds), (last_beat_at, self.stall_seconds))
        ends_at = min((at + seconds for at, seconds in times if seconds), default=inf)
        return max(0.0, ends_at - now)

    def compute_tick_seconds(self, lease_seconds: float) -> float:
        """Return the seconds between two checks, short enough to enforce the shortest limit."""
        limits = (self.stall_seconds, self.timeout_seconds, self.pulse_seconds, lease_seconds)
        shortest = min(limit for limit in limits if limit is not None)
        return min(0.25, max(0.01, shortest / 10))

    def compute_pulse_seconds(self, lease_seconds: float = inf) -> float:
        """Return the seconds between two pulses of a child."""
        limits = (self.stall_seconds, self.pulse_seconds, lease_seconds)
        return min(1.0, *(limit / 4 for limit in limits if limit is not None))
