"""List the active jobs from the store in each cycle, and find those that have stalled."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.core.clock import Clock
from holdfast.jobs.model import ExportJob, JobStatus
from holdfast.jobs.stall import StallRule


class ActiveJobReader(Protocol):
    """The part of the job store that heartbeats use. It can only read.

    Every JobStateRepository is an ActiveJobReader.
    """

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the job, or None if there is none."""

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return all jobs of that status."""


@dataclass(frozen=True, slots=True)
class ActiveJobList:
    """The active jobs as the store listed them; the call began at `asked_at` (monotonic)."""

    asked_at: float
    active: list[ExportJob]
    stalled: list[str] = field(default_factory=list)  # active, but without progress
    ended: list[str] = field(default_factory=list)  # received here before, not active now

    @property
    def to_beat(self) -> list[ExportJob]:
        """The jobs that have a token and are not stalled."""
        stalled = set(self.stalled)
        return [job for job in self.active if job.task_token and job.job_id not in stalled]


def list_active_jobs(
    jobs: ActiveJobReader, rule: StallRule, clock: Clock, expected: Iterable[str] = ()
) -> ActiveJobList:
    """List the active jobs and find the stalled ones. Raises what the listing raises.

    `expected` are ids of jobs that should be active. Those that the listing does not have
    are read one by one, so that a job is not missed if the index is behind, and the end of
    a job in another process is noticed.
    """
    asked_at = clock.monotonic()
    rule.check_clock()
    # In this order, a job that moves on between the calls is in both listings. In the
    # opposite order it could be in neither.
    active = {
        job.job_id: job
        for status in (JobStatus.PROCESSING, JobStatus.DOWNLOADING)
        for job in jobs.find_by_status(status)
        if not job.terminal
    }
    job_list = ActiveJobList(asked_at, list(active.values()))
    for job_id in expected:
        if job_id not in active:
            _add_expected(job_id, jobs, job_list)
    for job in job_list.active:
        if rule.measure_stall(job) is not None:
            _confirm_stall(job.job_id, jobs, rule, job_list)
    return job_list


def _add_expected(job_id: str, jobs: ActiveJobReader, job_list: ActiveJobList) -> None:
    try:
        job = jobs.find_by_id(job_id)
    except Exception:  # its state is unknown, so nothing changes for it
        return
    if job is None or job.terminal:
        job_list.ended.append(job_id)
    else:
        job_list.active.append(job)


def _confirm_stall(
    job_id: str, jobs: ActiveJobReader, rule: StallRule, job_list: ActiveJobList
) -> None:
    """Read the job itself, because the listing may be behind and missing beats end the job."""
    try:
        job = jobs.find_by_id(job_id)
    except Exception:  # unknown, so it gets its heartbeat and is checked in the next cycle
        return
    if job is None or job.terminal:
        return
    if rule.measure_stall(job) is not None:
        job_list.stalled.append(job_id)
