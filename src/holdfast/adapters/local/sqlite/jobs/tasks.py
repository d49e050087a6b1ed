"""Task rows, within the caller's transaction."""

import sqlite3
from collections.abc import Iterable, Sequence
from uuid import uuid4

from holdfast.adapters.local.sqlite.jobs.rows import Row, read_rows
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


def insert_unnamed(connection: sqlite3.Connection, job_no: int) -> str:
    """Store a row for a task that was never listed, and return its id."""
    task_id = f"nameless-{uuid4().hex}"
    connection.execute(_ADD, (job_no, task_id, "", "", None, None))
    return task_id


def finish_tasks(
    connection: sqlite3.Connection, job_no: int, results: Sequence[TaskResult]
) -> tuple[int, int]:
    """Finish pending tasks and return how many completed and failed now.

    Only the first result of a task counts.
    """
    first_results: dict[str, TaskResult] = {}
    for result in results:
        first_results.setdefault(result.task_id, result)
    successes = [result for result in first_results.values() if result.success]
    failures = [result for result in first_results.values() if not result.success]
    return (
        _finish_with_status(connection, job_no, TaskStatus.COMPLETED, successes),
        _finish_with_status(connection, job_no, TaskStatus.FAILED, failures),
    )


def _finish_with_status(
    connection: sqlite3.Connection, job_no: int, status: TaskStatus, results: list[TaskResult]
) -> int:
    values = [
        (
            status.value,
            result.bytes_processed,
            result.error.code if result.error else None,
            result.error.message if result.error else None,
            job_no,
            result.task_id,
        )
        for result in results
    ]
    return connection.executemany(_FINISH, values).rowcount if values else 0


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
