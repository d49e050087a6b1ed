"""Which jobs are active, and which of them only seem to be: the store, asked each cycle."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.core.clock import Clock
from holdfast.jobs.model import ExportJob, JobStatus
from holdfast.jobs.stall import StallRule


class ActiveJobReader(Protocol):
    """What a heartbeat may ask of the job store: it can read, and nothing else.

    As in JobStateRepository, which is one.
    """

    def find_by_id(self, job_id: str) -> ExportJob | None: ...

    def find_by_status(self, status: JobStatus) -> list[ExportJob]: ...


@dataclass(frozen=True, slots=True)
class ActiveJobList:
    """What the store said, asked at `asked_at` (monotonic)."""

    asked_at: float
    active: list[ExportJob]
    stalled: list[str] = field(default_factory=list)  # active, and not moving
    ended: list[str] = field(default_factory=list)  # worked on here once, not active now

    @property
    def to_beat(self) -> list[ExportJob]:
        stalled = set(self.stalled)
        return [job for job in self.active if job.task_token and job.job_id not in stalled]


def list_active_jobs(
    jobs: ActiveJobReader, rule: StallRule, clock: Clock, expected: Iterable[str] = ()
) -> ActiveJobList:
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
    census = ActiveJobList(asked_at, list(found.values()))
    for job_id in expected:
        if job_id not in found:
            _look_for(job_id, jobs, census)
    for job in census.active:
        if rule.seconds_stalled(job) is not None:
            _judge(job.job_id, jobs, rule, census)
    return census


def _look_for(job_id: str, jobs: ActiveJobReader, census: ActiveJobList) -> None:
    try:
        job = jobs.find_by_id(job_id)
    except Exception:  # not known: it stays as it is
        return
    if job is None or job.terminal:
        census.ended.append(job_id)
    else:
        census.active.append(job)


def _judge(job_id: str, jobs: ActiveJobReader, rule: StallRule, census: ActiveJobList) -> None:
    """By the job itself: the listing may be behind, and silence ends the job."""
    try:
        job = jobs.find_by_id(job_id)
    except Exception:  # not known: it is beaten on, and judged in the next cycle
        return
    if job is None or job.terminal:
        return
    if rule.seconds_stalled(job) is not None:
        census.stalled.append(job_id)
