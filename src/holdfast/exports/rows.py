"""Convert jobs and tasks to rows, and back."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from holdfast.exports.model import (
    Callback,
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.store.rows import Row


def _get_code(error: JobError | None) -> str | None:
    return error.code if error else None


def _get_message(error: JobError | None) -> str | None:
    return error.message if error else None


def _reveal(token: TaskToken | None) -> str | None:
    return token.reveal() if token else None


def _join(marks: frozenset[str]) -> str:
    return " ".join(sorted(marks))


# The columns that change during a job's life: where the job has the value, and how it is
# written, unless it is written as it is.
_MUTABLE: tuple[tuple[str, str, Callable[[Any], Any] | None], ...] = (
    ("status", "state.status", str),
    ("total_tasks", "state.total_tasks", None),
    ("completed_tasks", "state.completed_tasks", None),
    ("failed_tasks", "state.failed_tasks", None),
    ("task_token", "task_token", _reveal),
    ("token_generation", "token_generation", None),
    ("seen_tokens", "seen_tokens", _join),
    ("sealed", "sealed", bool),
    ("remaining_tasks", "remaining_tasks", None),
    ("callback_state", "callback.state", str),
    ("callback_status", "callback.status", str),
    ("callback_error_code", "callback.error", _get_code),
    ("callback_error_message", "callback.error", _get_message),
    ("callback_attempts", "callback.attempts", None),
    ("callback_in_doubt", "callback.in_doubt", None),
    ("callback_attempted_at", "callback.attempted_at", None),
    ("error_code", "error", _get_code),
    ("error_message", "error", _get_message),
    ("updated_at", "updated_at", None),
    ("last_progress_at", "last_progress_at", None),
    ("completed_at", "completed_at", None),
    ("ttl", "ttl", None),
    ("token_closed_at", "token_closed_at", None),
)
_get_values = attrgetter(*(path for _, path, _ in _MUTABLE))
_IDENTITY = ("job_id", "export_id", "user_id", "metadata", "created_at")
_COUNTERS = ("total_tasks", "completed_tasks", "failed_tasks")
# The columns that are read as they are, and have the names of fields.
_SAME = (*_IDENTITY, *(name for name, path, encode in _MUTABLE if name == path and not encode))


def row_from_job(job: ExportJob) -> dict[str, Any]:
    """Return the row of a job."""
    return {
        **{name: getattr(job, name) for name in _IDENTITY},
        "metadata": dict(job.metadata),
        **{
            name: encode(value) if encode else value
            for (name, _, encode), value in zip(_MUTABLE, _get_values(job), strict=True)
        },
    }


def find_changes(before: ExportJob, after: ExportJob) -> dict[str, Any]:
    """Return only the columns that changed.

    Unchanged columns are not written, because a database would write their indexes again.
    """
    if before is after:
        return {}
    pairs = zip(_MUTABLE, _get_values(before), _get_values(after), strict=True)
    return {
        name: encode(value) if encode else value
        for (name, _, encode), old_value, value in pairs
        if value != old_value
    }


def job_from_row(row: Row) -> ExportJob:
    """Return the job of a row."""
    token = row["task_token"]
    return ExportJob(
        **{name: row[name] for name in _SAME},
        state=JobState(JobStatus(row["status"]), *(row[name] for name in _COUNTERS)),
        task_token=None if token is None else TaskToken(token),
        seen_tokens=frozenset(row["seen_tokens"].split()),
        sealed=bool(row["sealed"]),
        callback=Callback(
            CallbackState(row["callback_state"]),
            JobStatus(row["callback_status"]),
            _error_from_row(row, "callback_error"),
            row["callback_attempts"],
            bool(row["callback_in_doubt"]),
            row["callback_attempted_at"],
        ),
        error=_error_from_row(row, "error"),
    )


def _error_from_row(row: Row, name: str) -> JobError | None:
    code = row[f"{name}_code"]
    return None if code is None else JobError(code, row[f"{name}_message"])


_PENDING = {
    "status": TaskStatus.PENDING.value,
    "bytes_processed": 0,
    "error_code": None,
    "error_message": None,
}


def row_from_task(job_no: int | str, task: ExportTask) -> dict[str, Any]:
    """Return the row of a task that is pending, whatever its status is."""
    return {
        "job_no": job_no,
        "task_id": task.task_id,
        "url": task.url,
        "key": task.key,
        "checksum": task.checksum,
        "size": task.size,
        **_PENDING,
    }


def row_from_result(result: TaskResult) -> dict[str, Any]:
    """Return the columns that a result changes."""
    return {
        "status": result.status.value,
        "bytes_processed": result.bytes_processed,
        "error_code": _get_code(result.error),
        "error_message": _get_message(result.error),
    }


def task_from_row(job_id: str, row: Row) -> ExportTask:
    """Return the task of a row."""
    return ExportTask(
        job_id=job_id,
        task_id=row["task_id"],
        url=row["url"],
        key=row["key"],
        checksum=row["checksum"],
        size=row["size"],
        status=TaskStatus(row["status"]),
        bytes_processed=row["bytes_processed"],
        error=_error_from_row(row, "error"),
    )
