"""Decide which job a list is: a new one, an unfinished one, or the rest of a failed one.

    list ── new ────────────▶ ID            all files
         ── not finished ───▶ ID            continue
         ── COMPLETED ──────▶ nothing to do
         ── FAILED ─────────▶ ID.2, ID.3 …  the failed and unfinished files

A finished job is never changed, so a retry is another job.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.cli.errors import InputRefused, UsageError
from holdfast.cli.export.file_list import ExportList
from holdfast.jobs.model import ExportJob, JobStatus, TaskStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.jobs.request import JobRequest, TaskSpec

_TARGET, _LIST = "target", "list"  # the metadata that a job's id stands for


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step for a list.

    `existing_job` is the job in the store, or None if it is new. `done` means that nothing
    is left to do. `summary` is shown to the user.
    """

    request: JobRequest
    existing_job: ExportJob | None
    summary: str
    done: bool = False


def make_plan(files: ExportList, to: str, jobs: JobStateRepository) -> Plan:
    """Return the plan for a list.

    Raises InputRefused or UsageError if the store has a different job with that id.
    """
    first = _make_first_request(files, to)
    plan = Plan(first, jobs.find_by_id(first.job_id), _describe_new(first))
    if plan.existing_job is None:
        return plan
    _require_same_job(plan.existing_job, first)
    total = len(first.tasks or ())
    for number in range(2, 1_000_000):
        job = plan.existing_job
        if job is None:
            return plan
        if job.status is JobStatus.COMPLETED:
            return replace(plan, summary=_describe_done(total), done=True)
        if not job.terminal:
            return replace(plan, summary=_describe_resumed(job))
        specs = tuple(_find_unfinished(plan.request, job, jobs))
        request = replace(first, job_id=f"{first.job_id}.{number}", tasks=specs)
        summary = _describe_retry(job, len(specs), total)
        plan = Plan(request, jobs.find_by_id(request.job_id), summary)
    raise UsageError(f"job {first.job_id!r} was retried a million times; use another store")


def _make_first_request(files: ExportList, to: str) -> JobRequest:
    target = to if to.startswith("s3://") else os.path.abspath(to)
    digest = files.compute_digest()
    job_id = files.request.job_id
    if not files.has_id:
        job_id = f"run-{hashlib.sha256(f'{target} {digest}'.encode()).hexdigest()[:12]}"
    metadata = {**(files.request.metadata or {}), _TARGET: target, _LIST: digest}
    export_id = files.request.export_id if files.has_id else job_id
    return replace(files.request, job_id=job_id, export_id=export_id, metadata=metadata)


def _require_same_job(job: ExportJob, request: JobRequest) -> None:
    """Check the target and the list of an existing job, which its id does not show."""
    stored, requested = job.metadata, request.metadata or {}
    if stored.get(_TARGET) != requested[_TARGET]:
        other = stored.get(_TARGET, "another target")
        raise UsageError(
            f"job {job.job_id!r} of this store exports to {other}; "
            "use another store (--jobs) or another jobId"
        )
    if stored.get(_LIST) != requested[_LIST]:
        raise InputRefused(
            f"job {job.job_id!r} of this store has another list; give this list "
            "another jobId, or none"
        )


def _find_unfinished(
    request: JobRequest, job: ExportJob, jobs: JobStateRepository
) -> Iterator[TaskSpec]:
    """Yield the files that a failed job did not complete.

    These are all files if the job failed before all of its tasks were stored.
    """
    if not job.sealed:
        yield from request.tasks or ()
        return
    after = None
    while page := jobs.tasks(job.job_id, after=after):
        for task in page:
            if task.status is not TaskStatus.COMPLETED:
                yield TaskSpec(
                    url=task.url, key=task.key, checksum=task.checksum, size=task.size
                )
        after = page[-1].task_id


# -- summaries


def _describe_new(request: JobRequest) -> str:
    return f"{_format_files(len(request.tasks or ()))} to fetch"


def _describe_done(total: int) -> str:
    return f"{_format_files(total)}: all done before, nothing to do"


def _describe_resumed(job: ExportJob) -> str:
    if not job.sealed:
        return "continuing: its files were being listed"
    failed = f", {job.state.failed_tasks:,} failed" if job.state.failed_tasks else ""
    done = f"{job.state.completed_tasks:,} of {job.state.total_tasks:,}"
    return f"continuing: {done} are done{failed}"


def _describe_retry(job: ExportJob, left: int, total: int) -> str:
    if job.sealed and left == job.state.failed_tasks:
        return f"{left:,} of {total:,} had failed; retrying those"
    return f"{left:,} of {total:,} had failed or were not done; retrying those"


def _format_files(count: int) -> str:
    return f"{count:,} file" if count == 1 else f"{count:,} files"
