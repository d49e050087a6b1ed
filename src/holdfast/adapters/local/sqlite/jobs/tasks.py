"""Task rows, within the caller's transaction."""

import sqlite3
from collections.abc import Iterable
from typing import Any

from holdfast.adapters.local.sqlite.jobs.rows import get_code, get_message
from holdfast.adapters.local.sqlite.rows import Row, read_rows
from holdfast.jobs.model import ExportTask, TaskResult, TaskStatus

_ADD = """
INSERT INTO tasks (job_no, task_id, url, key, checksum, size, status, bytes_processed)
VALUES (?, ?, ?, ?, ?, ?, 'PENDING', 0) ON CONFLICT DO NOTHING
"""
# Only a pending task is finished, so that no task is counted twice.
_FINISH = """
UPDATE tasks SET status = ?, bytes_processed = ?, error_code = ?, error_message = ?
WHERE job_no = ? AND task_id = ? AND status = 'PENDING'
"""
PAGE = """
SELECT * FROM tasks WHERE job_no = ? AND task_id > ? AND (? IS NULL OR status = ?)
ORDER BY task_id LIMIT ?
"""


def insert_tasks(
    connection: sqlite3.Connection, job_no: int, tasks: Iterable[ExportTask]
) -> None:
    """Store the tasks that are missing. Existing rows stay as they are."""
    connection.executemany(
        _ADD,
        [
            (job_no, task.task_id, task.url, task.key, task.checksum, task.size)
            for task in tasks
        ],
    )


def finish_tasks(
    connection: sqlite3.Connection, job_no: int, results: Iterable[TaskResult]
) -> tuple[int, int]:
    """Finish pending tasks and return how many completed and failed now."""
    values: dict[TaskStatus, list[tuple[Any, ...]]] = {
        TaskStatus.COMPLETED: [],
        TaskStatus.FAILED: [],
    }
    for result in results:
        values[result.status].append(
            (
                result.status.value,
                result.bytes_processed,
                get_code(result.error),
                get_message(result.error),
                job_no,
                result.task_id,
            )
        )
    completed, failed = (
        connection.executemany(_FINISH, rows).rowcount if rows else 0
        for rows in values.values()
    )
    return completed, failed


def read_page(
    connection: sqlite3.Connection,
    job_no: int,
    status: TaskStatus | None,
    after: str | None,
    limit: int,
) -> list[Row]:
    """Return up to `limit` task rows after the id `after`, in order."""
    wanted = status.value if status else None
    return read_rows(connection.execute(PAGE, (job_no, after or "", wanted, wanted, limit)))
