"""Delete finished jobs when their time has come, in small steps.

First a job is deleted, and its number is noted in the same transaction. Then its tasks are
deleted, one slice per transaction, so that no other writer waits long. If a process is killed
in between, other processes delete the rest.
"""

from holdfast.adapters.local.sqlite.database import Database

_MAX_JOBS = 20  # in one call
_MAX_TASKS_PER_SLICE = 500  # tasks in one transaction
_MIN_TASKS = 1_000  # in one call

_EXPIRED = "SELECT job_no FROM jobs WHERE ttl <= ? ORDER BY ttl LIMIT ?"
_REMOVE = """
DELETE FROM tasks WHERE (job_no, task_id) IN
    (SELECT job_no, task_id FROM tasks WHERE job_no = ? LIMIT ?)
"""


def delete_expired_jobs(database: Database, now: float, tasks_of_settled: int) -> None:
    """Delete expired jobs, and more tasks than the job just settled had.

    The file therefore stays small.
    """
    with database.begin_read() as connection:
        expired = connection.execute(_EXPIRED, (now, 1)).fetchone()
        if not expired and not connection.execute("SELECT 1 FROM forgotten").fetchone():
            return
    _delete_jobs(database, now)
    remaining = _MIN_TASKS + 2 * tasks_of_settled
    while remaining > 0 and _remove_slice(database):
        remaining -= _MAX_TASKS_PER_SLICE


def _delete_jobs(database: Database, now: float) -> None:
    with database.begin_write() as connection:
        expired = connection.execute(_EXPIRED, (now, _MAX_JOBS)).fetchall()
        connection.executemany("INSERT INTO forgotten (job_no) VALUES (?)", expired)
        connection.executemany("DELETE FROM jobs WHERE job_no = ?", expired)


def _remove_slice(database: Database) -> bool:
    """Delete one slice of tasks. Return False if there was nothing to delete."""
    with database.begin_write() as connection:
        job_row = connection.execute("SELECT job_no FROM forgotten LIMIT 1").fetchone()
        if not job_row:
            return False
        if (
            connection.execute(_REMOVE, (*job_row, _MAX_TASKS_PER_SLICE)).rowcount
            < _MAX_TASKS_PER_SLICE
        ):
            connection.execute("DELETE FROM forgotten WHERE job_no = ?", job_row)
        return True
