"""Convert jobs and tasks to rows, and back."""

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from holdfast.jobs.model import (
    Callback,
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskStatus,
    TaskToken,
)

Row = Mapping[str, Any]


def row_from_job(job: ExportJob) -> dict[str, Any]:
    """Return the row of a job."""
    return {
        "job_id": job.job_id,
        "export_id": job.export_id,
        "user_id": job.user_id,
        "metadata": json.dumps(dict(job.metadata)),
        "created_at": job.created_at,
        **mutable_row_from_job(job),
    }


def mutable_row_from_job(job: ExportJob) -> dict[str, Any]:
    """Return only the columns that change during a job's life."""
    return {
        "status": job.status.value,
        "total_tasks": job.state.total_tasks,
        "completed_tasks": job.state.completed_tasks,
        "failed_tasks": job.state.failed_tasks,
        "task_token": job.task_token.reveal() if job.task_token else None,
        "token_generation": job.token_generation,
        "seen_tokens": " ".join(sorted(job.seen_tokens)),
        "sealed": job.sealed,
        "remaining_tasks": job.remaining_tasks,
        **_row_from_callback(job.callback),
        **_row_from_error(job.error, "error"),
        "updated_at": job.updated_at,
        "last_progress_at": job.last_progress_at,
        "completed_at": job.completed_at,
        "ttl": job.ttl,
    }


def _row_from_callback(callback: Callback) -> dict[str, Any]:
    return {
        "callback_state": callback.state.value,
        "callback_status": callback.status.value,
        **_row_from_error(callback.error, "callback_error"),
        "callback_attempts": callback.attempts,
        "callback_in_doubt": callback.in_doubt,
        "callback_attempted_at": callback.attempted_at,
    }


def _row_from_error(error: JobError | None, name: str) -> dict[str, Any]:
    return {
        f"{name}_code": error.code if error else None,
        f"{name}_message": error.message if error else None,
    }


def job_from_row(row: Row) -> ExportJob:
    """Return the job of a row."""
    token = row["task_token"]
    return ExportJob(
        job_id=row["job_id"],
        export_id=row["export_id"],
        user_id=row["user_id"],
        state=_state_from_row(row),
        task_token=None if token is None else TaskToken(token),
        token_generation=row["token_generation"],
        seen_tokens=frozenset(row["seen_tokens"].split()),
        sealed=bool(row["sealed"]),
        remaining_tasks=row["remaining_tasks"],
        callback=_callback_from_row(row),
        error=_error_from_row(row, "error"),
        metadata=json.loads(row["metadata"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        last_progress_at=row["last_progress_at"],
        completed_at=row["completed_at"],
        ttl=row["ttl"],
    )


def _state_from_row(row: Row) -> JobState:
    return JobState(
        JobStatus(row["status"]),
        row["total_tasks"],
        row["completed_tasks"],
        row["failed_tasks"],
    )


def _callback_from_row(row: Row) -> Callback:
    return Callback(
        CallbackState(row["callback_state"]),
        JobStatus(row["callback_status"]),
        _error_from_row(row, "callback_error"),
        row["callback_attempts"],
        bool(row["callback_in_doubt"]),
        row["callback_attempted_at"],
    )


def _error_from_row(row: Row, name: str) -> JobError | None:
    code = row[f"{name}_code"]
    return None if code is None else JobError(code, row[f"{name}_message"])


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


def read_rows(cursor: sqlite3.Cursor) -> list[Row]:
    """Return the rows of a cursor as dicts by column."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, values, strict=True)) for values in cursor]
