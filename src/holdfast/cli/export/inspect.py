"""The read-only commands `holdfast export list` and `show`. Task tokens are masked."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.console import print_facts, print_json, print_result, print_table
from holdfast.cli.errors import NotFound, UsageError, silence_log
from holdfast.cli.export.options import Store, require_store, resolve_store
from holdfast.cli.formatting import format_age
from holdfast.core.clock import SYSTEM_CLOCK, to_utc
from holdfast.jobs.model import (
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskStatus,
)

if TYPE_CHECKING:
    from holdfast.jobs.ports import JobStateRepository

_STATUSES = "PROCESSING|DOWNLOADING|COMPLETED|FAILED"


def list_(
    jobs: Store = None,
    status: Annotated[
        str | None, typer.Option(metavar=_STATUSES, help="Show only jobs with this status.")
    ] = None,
    with_token: Annotated[
        bool, typer.Option("--with-token", help="Show only jobs that Step Functions waits for.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a store, oldest first."""
    statuses = _parse_statuses(status)
    with _open_repository(jobs) as repository:
        selected = [job for status in statuses for job in repository.find_by_status(status)]
    selected = [job for job in selected if job.has_task_token() or not with_token]
    selected.sort(key=lambda job: job.created_at)
    if as_json:
        print_json([_job_to_json(job) for job in selected])
        return
    now = SYSTEM_CLOCK.time()
    print_table(_HEADINGS, [_job_to_row(job, now) for job in selected])


def _parse_statuses(text: str | None) -> list[JobStatus]:
    if text is None:
        return list(JobStatus)
    try:
        return [JobStatus(text.upper())]
    except ValueError:
        raise UsageError(
            f"--status must be one of {', '.join(JobStatus)}; got {text!r}"
        ) from None


def show(
    job_id: Annotated[str, typer.Argument(metavar="JOB", help="The id of the job.")],
    jobs: Store = None,
    failed: Annotated[bool, typer.Option("--failed", help="List the failed tasks.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a job: its progress, its callback to Step Functions, and its error."""
    with _open_repository(jobs) as repository:
        job = repository.find_by_id(job_id)
        if job is None:
            raise NotFound(
                f"there is no job {job_id!r} in this store: see `holdfast export list`"
            )
        tasks = list(_read_failed_tasks(repository, job_id)) if failed else []
    if as_json:
        more = {"failed_tasks": [_task_to_json(task) for task in tasks]} if failed else {}
        print_json({**_job_to_json(job), **more})
        return
    print_facts(_describe_job(job, SYSTEM_CLOCK.time()))
    print_result(*(f"  {task.key}  {format_job_error(task.error)}" for task in tasks))


@contextmanager
def _open_repository(store: str | None) -> "Iterator[JobStateRepository]":
    from holdfast.bootstrap.exports import open_jobs

    url = require_store(resolve_store(store))
    with silence_log(), open_jobs(url) as repository:
        yield repository


def _read_failed_tasks(repository: "JobStateRepository", job_id: str) -> "Iterator[ExportTask]":
    after = None
    while page := repository.tasks(job_id, status=TaskStatus.FAILED, after=after):
        yield from page
        after = page[-1].task_id


# -- for a terminal

_HEADINGS = ("job", "status", "progress", "age", "last progress", "token", "error")


def _job_to_row(job: ExportJob, now: float) -> tuple[str, ...]:
    """Return the job's cells for a table."""
    return (
        job.job_id,
        job.status.value,
        _format_progress(job),
        format_age(job.created_at, now),
        format_age(job.last_progress_at, now),
        str(job.task_token or "-"),
        job.error.code if job.error else "-",
    )


def _format_progress(job: ExportJob) -> str:
    state = job.state
    if not job.sealed:
        return "listing files" if not job.terminal else "-"
    failed = f", {state.failed_tasks:,} failed" if state.failed_tasks else ""
    return (
        f"{state.processed_tasks:,} of {state.total_tasks:,} "
        f"({state.percent_processed} %){failed}"
    )


def _describe_job(job: ExportJob, now: float) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) for each fact of the job."""
    yield "job", job.job_id
    yield "status", job.status.value
    yield "progress", _format_progress(job)
    yield "export", job.export_id
    yield "user", job.user_id
    yield "started", _format_time(job.created_at, now)
    yield "last progress", _format_time(job.last_progress_at, now)
    if job.completed_at is not None:
        yield "ended", _format_time(job.completed_at, now)
    yield "token", _format_token(job)
    yield "callback", _format_callback(job)
    if job.error is not None:
        yield "error", format_job_error(job.error)


def _format_time(at: float, now: float) -> str:
    return f"{to_utc(at):%Y-%m-%d %H:%M:%S} UTC, {format_age(at, now)} ago"


def _format_token(job: ExportJob) -> str:
    if job.task_token is None:
        return "none"
    again = f", number {job.token_generation + 1} of this job" if job.token_generation else ""
    return f"{job.task_token}{again}"


def _format_callback(job: ExportJob) -> str:
    callback = job.callback
    if callback.state is not CallbackState.PENDING:
        return callback.state.value
    uncertain = ", may have arrived" if callback.in_doubt else ""
    return f"pending: {callback.status}, tried {callback.attempts} times{uncertain}"


def format_job_error(error: JobError | None) -> str:
    """Return the code and the message of an error."""
    return f"{error.code}: {error.message}" if error else "failed"


# -- for scripts


def _job_to_json(job: ExportJob) -> dict[str, Any]:
    """Return the job as JSON."""
    state, callback = job.state, job.callback
    return {
        "job": job.job_id,
        "export": job.export_id,
        "user": job.user_id,
        "status": job.status.value,
        "sealed": job.sealed,
        "total": state.total_tasks,
        "completed": state.completed_tasks,
        "failed": state.failed_tasks,
        "percent": state.percent,
        "percent_processed": state.percent_processed,
        "token": str(job.task_token) if job.task_token else None,
        "callback": {
            "state": callback.state.value,
            "attempts": callback.attempts,
            "in_doubt": callback.in_doubt,
        },
        "error": _error_to_json(job.error),
        "created_at": to_utc(job.created_at).isoformat(),
        "last_progress_at": to_utc(job.last_progress_at).isoformat(),
        "completed_at": None
        if job.completed_at is None
        else to_utc(job.completed_at).isoformat(),
    }


def _error_to_json(error: JobError | None) -> dict[str, str] | None:
    return None if error is None else {"code": error.code, "message": error.message}


def _task_to_json(task: ExportTask) -> dict[str, Any]:
    """Return a failed task as JSON."""
    return {"name": task.key, "error": _error_to_json(task.error)}
