"""Which jobs are active, and which of them only seem to be: the store, asked each cycle."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.core.clock import Clock
from holdfast.jobs.model import ExportJob, JobStatus


class KnownJobs(Protocol):
    """What a heartbeat may ask of the job store: it can read, and nothing else.

    As in JobStateRepository, which is one.
    """

    def find_by_id(self, job_id: str) -> ExportJob | None: ...

    def find_by_status(self, status: JobStatus) -> list[ExportJob]: ...


@dataclass(frozen=True, slots=True)
class Census:
    """What the store said, asked at `asked_at` (monotonic)."""

    asked_at: float
    active: list[ExportJob]
    stalled: list[tuple[ExportJob, float]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)  # worked on here once, not active now

    @property
    def to_beat(self) -> list[ExportJob]:
        stalled = {job.job_id for job, _ in self.stalled}
        return [job for job in self.active if job.task_token and job.job_id not in stalled]


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


def take_census(
    jobs: KnownJobs, rule: StallRule, clock: Clock, expected: Iterable[str] = ()
) -> Census:
    """List and judge. Raises what the listing raises.

    `expected` are ids that should be active: those the listing does not have are read one
    by one, so that neither an index that is behind nor a job that ended elsewhere is missed.
    """
    asked_at = clock.monotonic()
    rule.look()
    # In this order a job that moves on in between is in both listings, not in neither.
    found = {
        job.job_id: job
        for status in (JobStatus.PROCESSING, JobStatus.DOWNLOADING)
        for job in jobs.find_by_status(status)
        if not job.terminal
    }
    census = Census(asked_at, list(found.values()))
    for job_id in expected:
        if job_id not in found:
            _look_for(job_id, jobs, census)
    for job in census.active:
        if rule.seconds_stalled(job) is not None:
            _judge(job.job_id, jobs, rule, census)
    return census


def _look_for(job_id: str, jobs: KnownJobs, census: Census) -> None:
    try:
        job = jobs.find_by_id(job_id)
    except Exception:  # not known: it stays as it is
        return
    if job is None or job.terminal:
        census.ended.append(job_id)
    else:
        census.active.append(job)


def _judge(job_id: str, jobs: KnownJobs, rule: StallRule, census: Census) -> None:
    """By the job itself: the listing may be behind, and a stall ends the job."""
    try:
        job = jobs.find_by_id(job_id)
    except Exception:  # not known: it is beaten on, and judged in the next cycle
        return
    if job is None or job.terminal:
        return
    if (seconds := rule.seconds_stalled(job)) is not None:
        census.stalled.append((job, seconds))
