"""A job as people and scripts see it. A token is masked, whoever looks."""

from collections.abc import Iterator
from typing import Any

from holdfast.cli.durations import in_words
from holdfast.core.clock import utc
from holdfast.jobs.model import CallbackState, ExportJob, ExportTask, JobError

HEADINGS = ("job", "status", "progress", "age", "last progress", "token", "error")


def row_of(job: ExportJob, now: float) -> tuple[str, ...]:
    return (
        job.job_id,
        job.status.value,
        _progress(job),
        in_words(max(0.0, now - job.created_at)),
        in_words(max(0.0, now - job.last_progress_at)),
        str(job.task_token or "-"),
        job.error.code if job.error else "-",
    )


def _progress(job: ExportJob) -> str:
    state = job.state
    if not job.sealed:
        return "being listed" if not job.terminal else "-"
    failed = f", {state.failed_tasks:,} failed" if state.failed_tasks else ""
    return (
        f"{state.processed_tasks:,} of {state.total_tasks:,} "
        f"({state.percent_processed} %){failed}"
    )


def story(job: ExportJob, now: float) -> Iterator[tuple[str, str]]:
    yield "job", job.job_id
    yield "status", job.status.value
    yield "progress", _progress(job)
    yield "export", job.export_id
    yield "user", job.user_id
    yield "begun", _ago(job.created_at, now)
    yield "last progress", _ago(job.last_progress_at, now)
    if job.completed_at is not None:
        yield "ended", _ago(job.completed_at, now)
    yield "token", _token(job)
    yield "callback", _callback(job)
    if job.error is not None:
        yield "error", said(job.error)


def _ago(at: float, now: float) -> str:
    return f"{utc(at):%Y-%m-%d %H:%M:%S} UTC, {in_words(max(0.0, now - at))} ago"


def _token(job: ExportJob) -> str:
    if job.task_token is None:
        return "none"
    again = f", the {job.token_generation + 1}. of this job" if job.token_generation else ""
    return f"{job.task_token}{again}"


def _callback(job: ExportJob) -> str:
    callback = job.callback
    if callback.state is not CallbackState.PENDING:
        return callback.state.value
    doubt = ", in doubt" if callback.in_doubt else ""
    return f"pending: {callback.status}, tried {callback.attempts} times{doubt}"


def said(error: JobError | None) -> str:
    return f"{error.code}: {error.message}" if error else "failed"


# -- for scripts


def as_json_object(job: ExportJob) -> dict[str, Any]:
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
        "error": _error_object(job.error),
        "created_at": utc(job.created_at).isoformat(),
        "last_progress_at": utc(job.last_progress_at).isoformat(),
        "completed_at": None if job.completed_at is None else utc(job.completed_at).isoformat(),
    }


def _error_object(error: JobError | None) -> dict[str, str] | None:
    return None if error is None else {"code": error.code, "message": error.message}


def task_object(task: ExportTask) -> dict[str, Any]:
    return {"name": task.key, "error": _error_object(task.error)}
