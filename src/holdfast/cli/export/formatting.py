"""Format jobs for a terminal and for scripts. Task tokens are always masked."""

from collections.abc import Iterator
from typing import Any

from holdfast.cli.durations import format_duration
from holdfast.core.clock import to_utc
from holdfast.jobs.model import CallbackState, ExportJob, ExportTask, JobError

HEADINGS = ("job", "status", "progress", "age", "last progress", "token", "error")


def job_to_row(job: ExportJob, now: float) -> tuple[str, ...]:
    """Return the job's cells for a table."""
    return (
        job.job_id,
        job.status.value,
        _format_progress(job),
        format_duration(max(0.0, now - job.created_at)),
        format_duration(max(0.0, now - job.last_progress_at)),
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


def describe_job(job: ExportJob, now: float) -> Iterator[tuple[str, str]]:
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
    return f"{to_utc(at):%Y-%m-%d %H:%M:%S} UTC, {format_duration(max(0.0, now - at))} ago"


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


def job_to_json(job: ExportJob) -> dict[str, Any]:
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


def task_to_json(task: ExportTask) -> dict[str, Any]:
    """Return a failed task as JSON."""
    return {"name": task.key, "error": _error_to_json(task.error)}
