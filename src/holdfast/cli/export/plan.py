"""Which job a list is: a new one, one to go on with, or what is left of one that failed.

    list ── never seen ─────▶ ID            all files
         ── not finished ───▶ ID            go on
         ── COMPLETED ──────▶ nothing to do
         ── FAILED ─────────▶ ID.2, ID.3 …  what failed and what was not done

A finished job stays as it is, so trying again is another job.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.cli.errors import InputRefused, UsageError
from holdfast.cli.export.listing import ExportList
from holdfast.jobs.model import ExportJob, JobStatus, TaskStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.jobs.request import JobRequest, TaskSpec

_TARGET, _LIST = "target", "list"  # in the metadata: what the job's id stands for


@dataclass(frozen=True, slots=True)
class Plan:
    """`found` is the job as it is in the store; None: it is new. `done`: nothing is left
    to do. `says` is for the person."""

    request: JobRequest
    found: ExportJob | None
    says: str
    done: bool = False


def planned(wanted: ExportList, to: str, jobs: JobStateRepository) -> Plan:
    """Raises InputRefused or UsageError when the store has another job of that id."""
    first = _first_request(wanted, to)
    plan = Plan(first, jobs.find_by_id(first.job_id), _fresh(first))
    if plan.found is None:
        return plan
    _must_be_the_same(plan.found, first)
    total = len(first.tasks or ())
    for number in range(2, 1_000_000):
        found = plan.found
        if found is None:
            return plan
        if found.status is JobStatus.COMPLETED:
            return replace(plan, says=_all_done(total), done=True)
        if not found.terminal:
            return replace(plan, says=_going_on(found))
        specs = tuple(_left(plan.request, found, jobs))
        request = replace(first, job_id=f"{first.job_id}.{number}", tasks=specs)
        says = _again(found, len(specs), total)
        plan = Plan(request, jobs.find_by_id(request.job_id), says)
    raise UsageError("this job was tried a million times")


def _first_request(wanted: ExportList, to: str) -> JobRequest:
    where = to if to.startswith("s3://") else os.path.abspath(to)
    digest = wanted.digest()
    job_id = wanted.request.job_id
    if not wanted.has_id:
        job_id = f"run-{hashlib.sha256(f'{where} {digest}'.encode()).hexdigest()[:12]}"
    metadata = {**(wanted.request.metadata or {}), _TARGET: where, _LIST: digest}
    export_id = wanted.request.export_id if wanted.has_id else job_id
    return replace(wanted.request, job_id=job_id, export_id=export_id, metadata=metadata)


def _must_be_the_same(found: ExportJob, asked: JobRequest) -> None:
    """A job's id says nothing of where its files went, or of which files it had."""
    said, wanted = found.metadata, asked.metadata or {}
    if said.get(_TARGET) != wanted[_TARGET]:
        other = said.get(_TARGET, "another target")
        raise UsageError(
            f"job {found.job_id!r} of this store went to {other}: "
            "use another store (--jobs) or another jobId"
        )
    if said.get(_LIST) != wanted[_LIST]:
        raise InputRefused(
            f"job {found.job_id!r} of this store was made of another list: give this one "
            "another jobId, or none"
        )


def _left(request: JobRequest, job: ExportJob, jobs: JobStateRepository) -> Iterator[TaskSpec]:
    """What a job that failed did not do; all, when it failed before it had all its tasks."""
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


# -- in words


def _fresh(request: JobRequest) -> str:
    return f"{_files(len(request.tasks or ()))} to fetch"


def _all_done(total: int) -> str:
    return f"{_files(total)}: all done before, nothing to do"


def _going_on(job: ExportJob) -> str:
    if not job.sealed:
        return "going on: its files were being listed"
    failed = f", {job.state.failed_tasks:,} failed" if job.state.failed_tasks else ""
    return (
        f"going on: {job.state.completed_tasks:,} of {job.state.total_tasks:,} are done{failed}"
    )


def _again(job: ExportJob, left: int, total: int) -> str:
    if job.sealed and left == job.state.failed_tasks:
        return f"{left:,} of {total:,} had failed; trying those again"
    return f"{left:,} of {total:,} had failed or were not done; trying those again"


def _files(count: int) -> str:
    return f"{count:,} file" if count == 1 else f"{count:,} files"
