"""Convert jobs and tasks to rows with the seed's names, and back.

Times are texts of fixed width in UTC, so they sort. `ttl` is in epoch seconds, as DynamoDB
requires. A value that a job does not have is missing from its row.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.errors import InvalidInput
from holdfast.exports.errors import InvalidJob
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
from holdfast.exports.transitions import build_not_found_error, shorten_name
from holdfast.lease.clock import to_utc
from holdfast.store.dynamodb.values import (
    Attributes,
    count_bytes,
    encode,
    find_whole_floats,
    measure_size,
    restore_floats,
)

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
    if not 0 < count_bytes(job_id) <= MAX_JOB_ID_BYTES:
        raise build_not_found_error(job_id)
    return {"jobId": {"S": job_id}}


def build_task_key(job_id: str, task_id: str) -> Attributes:
    """Return the key of a task's row."""
    return {"jobId": {"S": job_id}, "taskId": {"S": task_id}}


def is_valid_task_id(task_id: str) -> bool:
    """Return whether DynamoDB can hold a task with this id."""
    return 0 < count_bytes(task_id) <= MAX_TASK_ID_BYTES


# -- errors


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


# -- fields


class _Field(NamedTuple):
    """An attribute of a row, the field that it holds, and how it is written and read."""

    attribute: str
    name: str
    write: Callable[[Any], Any] = lambda value: value
    read: Callable[[Any], Any] = lambda value: value


def _get_value(member: StrEnum) -> str:
    return member.value


_JOB = (
    _Field("jobId", "job_id"),
    _Field("exportId", "export_id"),
    _Field("userId", "user_id"),
    _Field("createdAt", "created_at", format_time, parse_time),
    _Field("updatedAt", "updated_at", format_time, parse_time),
    _Field("lastProgressAt", "last_progress_at", format_time, parse_time),
    _Field("completedAt", "completed_at", format_time, parse_time),
    _Field("remainingTasks", "remaining_tasks"),
    _Field("sealed", "sealed"),
    _Field("taskToken", "task_token", TaskToken.reveal, TaskToken),
    _Field("tokenGeneration", "token_generation"),
    _Field("tokenClosedAt", "token_closed_at", format_time, parse_time),
    _Field("seenTokens", "seen_tokens", sorted, frozenset),
    _Field("error", "error", row_from_error, _error_from_row),
)
_STATE = (
    _Field("totalTasks", "total_tasks"),
    _Field("completedTasks", "completed_tasks"),
    _Field("failedTasks", "failed_tasks"),
)
_CALLBACK = (
    _Field("callbackState", "state", _get_value, CallbackState),
    _Field("outcome", "status", _get_value, JobStatus),
    _Field("outcomeError", "error", row_from_error, _error_from_row),
    _Field("callbackAttempts", "attempts"),
    _Field("callbackInDoubt", "in_doubt"),
    _Field("callbackAttemptedAt", "attempted_at", format_time, parse_time),
)
_TASK = (
    _Field("jobId", "job_id"),
    _Field("taskId", "task_id"),
    _Field("url", "url"),
    _Field("key", "key"),
    _Field("checksum", "checksum"),
    _Field("size", "size"),
    _Field("status", "status", _get_value, TaskStatus),
    _Field("bytesProcessed", "bytes_processed"),
    _Field("error", "error", row_from_error, _error_from_row),
)


def _write_fields(fields: Iterable[_Field], value: object) -> dict[str, Any]:
    found = ((field, getattr(value, field.name)) for field in fields)
    return {field.attribute: field.write(item) for field, item in found if item is not None}


def _read_fields(fields: Iterable[_Field], row: Row) -> dict[str, Any]:
    return {
        field.name: field.read(row[field.attribute])
        for field in fields
        if field.attribute in row
    }


# -- jobs


def row_from_job(job: ExportJob) -> Attributes:
    """Return the row of a job.

    Raises InvalidJob if the row is too large or holds a value that DynamoDB cannot store.
    """
    if not 0 < count_bytes(job.job_id) <= MAX_JOB_ID_BYTES:
        raise InvalidJob(f"a job id must have 1 to {MAX_JOB_ID_BYTES} bytes")
    has_callback = job.callback.state is not CallbackState.NONE
    row = {
        "status": job.status.value,
        **_write_fields(_JOB, job),
        **_write_fields(_STATE, job.state),
        **(_write_fields(_CALLBACK, job.callback) if has_callback else {}),
        **_compute_metadata(job),
    }
    attributes = _encode({name: value for name, value in row.items() if value is not None})
    return _check_size(attributes, MAX_JOB_BYTES, f"job {shorten_name(job.job_id)}")


def _compute_metadata(job: ExportJob) -> dict[str, Any]:
    metadata = dict(job.metadata)
    return {
        "metadata": metadata or None,
        "metadataFloats": find_whole_floats(metadata) or None,
        # An active job's row must not expire, or the job would be started again.
        "ttl": job.ttl if job.terminal else None,
    }


def job_from_row(row: Row) -> ExportJob:
    """Return the job of a row. An attribute that other software did not write has no value."""
    metadata = restore_floats(row.get("metadata", {}), set(row.get("metadataFloats", ())))
    return ExportJob(
        **{"export_id": "", "user_id": "", **_read_fields(_JOB, row)},
        state=JobState(JobStatus(row["status"]), **_read_fields(_STATE, row)),
        callback=Callback(**_read_fields(_CALLBACK, row)),
        metadata=metadata,
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


# -- tasks


def row_from_task(job_id: str, task: ExportTask) -> Attributes:
    """Return the row of a pending task. Raises InvalidJob."""
    if not is_valid_task_id(task.task_id):
        raise InvalidJob(f"a task id must have 1 to {MAX_TASK_ID_BYTES} bytes")
    pending = replace(
        task, job_id=job_id, status=TaskStatus.PENDING, bytes_processed=0, error=None
    )
    attributes = _encode(_write_fields(_TASK, pending))
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
    return _encode({**identity, **changes_from_result(result, ttl)})


def task_from_row(row: Row) -> ExportTask:
    """Return the task of a row."""
    return ExportTask(**{"url": "", "key": "", **_read_fields(_TASK, row)})


def _encode(row: Row) -> Attributes:
    try:
        return encode(row)
    except InvalidInput as error:
        raise InvalidJob(str(error)) from None


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
