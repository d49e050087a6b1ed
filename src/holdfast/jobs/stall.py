"""When a job is taken for stalled: not beaten, and failed by the reconciler."""

from holdfast.core.clock import Clock
from holdfast.jobs.model import ExportJob


class StallRule:
    """How long a job has been without progress.

    Progress is noted by the wall clock, which other hosts share. When somebody sets that
    clock, every job would seem stalled at once: then each is given the whole time anew.
    """

    def __init__(self, stall_seconds: float | None, leap_seconds: float, clock: Clock) -> None:
        self._stall_seconds = stall_seconds
        self._leap_seconds = leap_seconds
        self._clock = clock
        self._seen_at: tuple[float, float] | None = None  # wall, monotonic
        self._not_before = 0.0

    def look(self) -> None:
        """Notice that the clock was set. To be called once per cycle."""
        wall, monotonic = self._clock.time(), self._clock.monotonic()
        if self._seen_at is not None:
            leap = (wall - self._seen_at[0]) - (monotonic - self._seen_at[1])
            if leap > self._leap_seconds:
                self._not_before = wall
        self._seen_at = wall, monotonic

    def seconds_stalled(self, job: ExportJob) -> float | None:
        """None while it moves."""
        if self._stall_seconds is None:
            return None
        seconds = self._clock.time() - max(job.last_progress_at, self._not_before)
        return seconds if seconds > self._stall_seconds else None
