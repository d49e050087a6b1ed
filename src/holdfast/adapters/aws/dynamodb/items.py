"""Convert jobs and tasks to rows with the seed's names, and back.

Times are texts of fixed width in UTC, so they sort. `ttl` is in epoch seconds, as DynamoDB
requires. A value that a job does not have is missing from its row.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from holdfast.adapters.aws.dynamodb.values import (
    Attributes,
    encode,
    find_whole_floats,
    measure_size,
    restore_floats,
)
from holdfast.core.clock import to_utc
from holdfast.jobs.errors import InvalidJob
from holdfast.jobs.model import (
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
from holdfast.jobs.transitions import build_not_found_error, shorten_name

Row = Mapping[str, Any]

MAX_TASK_BYTES = 400 * 1024  # DynamoDB's limit for one item
# A job's row grows until it is settled, by the outcome, two reasons and another token. A row
# that just fits when it is saved could never end.
MAX_JOB_BYTES = 320 * 1024
MAX_MESSAGE_CHARS = 8_000  # 99 of them fit into one transaction of 4 MB
MAX_JOB_ID_BYTES, MAX_TASK_ID_BYTES = 2048, 1024  # bytes

_EPOCH = datetime.fromtimestamp(0, UTC)


def format_time(seconds: float) -> str:
    """Return a time as text, for example 2027-01-15T08:00:00.250000Z."""
    return to_utc(seconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float:
    """Return the epoch seconds of a time text."""
    return (datetime.fromisoformat(text) - _EPOCH).total_seconds()


# -- keys


def build_job_key(job_id: str) -> Attributes:
    """Return the key of a job's row. Raises JobNotFound for an id that no job can have here."""
    if not 0 < _count_bytes(job_id) <= MAX_JOB_ID_BYTES:
        raise build_not_found_error(job_id)
    return {"jobId": {"S": job_id}}


def build_task_key(job_id: str, task_id: str) -> Attributes:
    """Return the key of a task's row."""
    return {"jobId": {"S": job_id}, "taskId": {"S": task_id}}


def is_valid_task_id(task_id: str) -> bool:
    """Return whether DynamoDB can hold a task with this id."""
    return 0 < _count_bytes(task_id) <= MAX_TASK_ID_BYTES


def _count_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


# -- jobs


def row_from_job(job: ExportJob) -> Attributes:
    """Return the row of a job.

    Raises InvalidJob if the row is too large or holds a value that DynamoDB cannot store.
    """
    if not 0 < _count_bytes(job.job_id) <= MAX_JOB_ID_BYTES:
        raise InvalidJob(f"a job id must have 1 to {MAX_JOB_ID_BYTES} bytes")
    row = {**_build_identity(job), **_build_progress(job), **_row_from_callback(job.callback)}
    attributes = encode({name: value for name, value in row.items() if value is not None})
    return _check_size(attributes, MAX_JOB_BYTES, f"job {shorten_name(job.job_id)}")


def _build_identity(job: ExportJob) -> dict[str, Any]:
    metadata = dict(job.metadata)
    return {
        "jobId": job.job_id,
        "exportId": job.export_id,
        "userId": job.user_id,
        "createdAt": format_time(job.created_at),
        "updatedAt": format_time(job.updated_at),
        "lastProgressAt": format_time(job.last_progress_at),
        "completedAt": None if job.completed_at is None else format_time(job.completed_at),
        "metadata": metadata or None,
        "metadataFloats": find_whole_floats(metadata) or None,
        # An active job's row must not expire, or the job would be started again.
        "ttl": job.ttl if job.terminal else None,
    }


def _build_progress(job: ExportJob) -> dict[str, Any]:
    return {
        "status": job.status.value,
        "totalTasks": job.state.total_tasks,
        "completedTasks": job.state.completed_tasks,
        "failedTasks": job.state.failed_tasks,
        "remainingTasks": job.remaining_tasks,
        "sealed": job.sealed,
        "taskToken": job.task_token.reveal() if job.task_token else None,
        "tokenGeneration": job.token_generation,
        "seenTokens": sorted(job.seen_tokens),
        "error": row_from_error(job.error),
    }


def _row_from_callback(callback: Callback) -> dict[str, Any]:
    if callback.state is CallbackState.NONE:
        return {}
    at = callback.attempted_at
    return {
        "callbackState": callback.state.value,
        "outcome": callback.status.value,
        "outcomeError": row_from_error(callback.error),
        "callbackAttempts": callback.attempts,
        "callbackInDoubt": callback.in_doubt,
        "callbackAttemptedAt": None if at is None else format_time(at),
    }


def job_from_row(row: Row) -> ExportJob:
    """Return the job of a row."""
    return ExportJob(
        job_id=row["jobId"],
        export_id=row.get("exportId", ""),
        user_id=row.get("userId", ""),
        state=_state_from_row(row),
        task_token=TaskToken(row["taskToken"]) if "taskToken" in row else None,
        token_generation=row.get("tokenGeneration", 0),
        seen_tokens=frozenset(row.get("seenTokens", ())),
        sealed=row.get("sealed", False),
        remaining_tasks=row.get("remainingTasks", 0),
        callback=_callback_from_row(row),
        error=_error_from_row(row.get("error")),
        metadata=restore_floats(row.get("metadata", {}), row.get("metadataFloats", [])),
        created_at=_time_from_row(row, "createdAt") or 0.0,
        updated_at=_time_from_row(row, "updatedAt") or 0.0,
        last_progress_at=_time_from_row(row, "lastProgressAt") or 0.0,
        completed_at=_time_from_row(row, "completedAt"),
        ttl=row.get("ttl"),
    )


def require_job(job_id: str, row: Row) -> ExportJob:
    """Return the job of a row. Raises JobNotFound if the row is empty."""
    if not row:
        raise build_not_found_error(job_id)
    return job_from_row(row)


def restore_before_attempt(row: Row) -> ExportJob:
    """Return the job as it was before a delivery attempt, given the row after the attempt."""
    job = job_from_row(row)
    callback = replace(
        job.callback,
        attempts=job.callback.attempts - 1,
        in_doubt=row.get("callbackDoubtBefore", True),
        attempted_at=None,
    )
    return replace(job, callback=callback)


def _state_from_row(row: Row) -> JobState:
    return JobState(
        JobStatus(row["status"]),
        row.get("totalTasks", 0),
        row.get("completedTasks", 0),
        row.get("failedTasks", 0),
    )


def _callback_from_row(row: Row) -> Callback:
    if "callbackState" not in row:
        return Callback()
    return Callback(
        CallbackState(row["callbackState"]),
        JobStatus(row.get("outcome", JobStatus.FAILED)),
        _error_from_row(row.get("outcomeError")),
        row.get("callbackAttempts", 0),
        row.get("callbackInDoubt", False),
        _time_from_row(row, "callbackAttemptedAt"),
    )


def _time_from_row(row: Row, name: str) -> float | None:
    return parse_time(row[name]) if name in row else None


def row_from_error(error: JobError | None) -> dict[str, str] | None:
    """Return the stored form of an error, or None if there is no error."""
    if error is None:
        return None
    return {"code": _truncate(error.code), "message": _truncate(error.message)}


def _truncate(text: str) -> str:
    """Cut a long text, because a job must not fail to end on account of a long reason."""
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 7]}… (cut)"


def _error_from_row(row: Row | None) -> JobError | None:
    return JobError(row["code"], row["message"]) if row else None


# -- tasks


def row_from_task(job_id: str, task: ExportTask) -> Attributes:
    """Return the row of a pending task. Raises InvalidJob."""
    if not is_valid_task_id(task.task_id):
        raise InvalidJob(f"a task id must have 1 to {MAX_TASK_ID_BYTES} bytes")
    row = {
        "jobId": job_id,
        "taskId": task.task_id,
        "url": task.url,
        "key": task.key,
        "checksum": task.checksum,
        "size": task.size,
        "status": TaskStatus.PENDING.value,
        "bytesProcessed": 0,
    }
    attributes = encode({name: value for name, value in row.items() if value is not None})
    return _check_size(attributes, MAX_TASK_BYTES, f"a task of job {shorten_name(job_id)}")


def changes_from_result(result: TaskResult, ttl: int | None) -> dict[str, Any]:
    """Return what a result changes in its task's row."""
    row = {
        "status": result.status.value,
        "bytesProcessed": result.bytes_processed,
        "error": row_from_error(result.error),
        "ttl": ttl,
    }
    return {name: value for name, value in row.items() if value is not None}


def row_from_unlisted_result(result: TaskResult, ttl: int | None) -> Attributes:
    """Return the finished row of a task that was never listed."""
    identity = {"jobId": result.job_id, "taskId": result.task_id, "url": "", "key": ""}
    return encode({**identity, **changes_from_result(result, ttl)})


def task_from_row(row: Row) -> ExportTask:
    """Return the task of a row."""
    return ExportTask(
        row["jobId"],
        row["taskId"],
        row.get("url", ""),
        row.get("key", ""),
        row.get("checksum"),
        row.get("size"),
        TaskStatus(row["status"]),
        row.get("bytesProcessed", 0),
        _error_from_row(row.get("error")),
    )


def _check_size(attributes: Attributes, max_bytes: int, subject: str) -> Attributes:
    try:
        size = measure_size(attributes)
    except UnicodeEncodeError:
        raise InvalidJob(f"{subject}: a text contains a lone surrogate") from None
    if size > max_bytes:
        raise InvalidJob(
            f"{subject} is too large: it has {size} bytes, the limit is {max_bytes}"
        )
    return attributes
