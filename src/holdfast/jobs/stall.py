"""The rule for stalled jobs. They get no heartbeats, and the reconciler fails them."""

from holdfast.core.clock import Clock
from holdfast.jobs.model import ExportJob


class StallRule:
    """Measures how long a job made no progress.

    Progress is noted by the wall clock, which other hosts share. If that clock is set
    forward, every job would seem stalled at once, so each job then gets the whole time
    again.
    """

    def __init__(
        self, stall_seconds: float | None, max_clock_jump_seconds: float, clock: Clock
    ) -> None:
        self._stall_seconds = stall_seconds
        self._max_clock_jump_seconds = max_clock_jump_seconds
        self._clock = clock
        self._seen_at: tuple[float, float] | None = None  # wall, monotonic
        self._not_before = 0.0

    def check_clock(self) -> None:
        """Notice that the wall clock was set. Call this once per cycle."""
        wall, monotonic = self._clock.time(), self._clock.monotonic()
        if self._seen_at is not None:
            jump = (wall - self._seen_at[0]) - (monotonic - self._seen_at[1])
            if jump > self._max_clock_jump_seconds:
                self._not_before = wall
        self._seen_at = wall, monotonic

    def measure_stall(self, job: ExportJob) -> float | None:
        """Return for how many seconds the job has stalled, or None if it has not."""
        if self._stall_seconds is None:
            return None
        seconds = self._clock.time() - max(job.last_progress_at, self._not_before)
        return seconds if seconds > self._stall_seconds else None
