"""Finished jobs are forgotten when their time has come, a little at a time.

First a job is gone, in one step with the note of its number; then its tasks, a slice per
transaction: nobody waits long, and whoever is killed in between leaves the rest to others.
"""

from holdfast.adapters.local.sqlite.database import Database

_MAX_JOBS = 20  # at a time
_MAX_TASKS_PER_SLICE = 500  # of tasks, in one transaction
_MIN_TASKS = 1_000  # tasks at a time

_EXPIRED = "SELECT job_no FROM jobs WHERE ttl <= ? ORDER BY ttl LIMIT ?"
_REMOVE = """
DELETE FROM tasks WHERE (job_no, task_id) IN
    (SELECT job_no, task_id FROM tasks WHERE job_no = ? LIMIT ?)
"""


def delete_expired_jobs(database: Database, now: float, tasks_of_settled: int) -> None:
    """Remove more tasks than the job had that was just settled: so the file stays small."""
    with database.begin_read() as connection:
        expired = connection.execute(_EXPIRED, (now, 1)).fetchone()
        if not expired and not connection.execute("SELECT 1 FROM forgotten").fetchone():
            return
    _delete_jobs(database, now)
    left = _MIN_TASKS + 2 * tasks_of_settled
    while left > 0 and _remove_slice(database):
        left -= _MAX_TASKS_PER_SLICE


def _delete_jobs(database: Database, now: float) -> None:
    with database.begin_write() as connection:
        expired = connection.execute(_EXPIRED, (now, _MAX_JOBS)).fetchall()
        connection.executemany("INSERT INTO forgotten (job_no) VALUES (?)", expired)
        connection.executemany("DELETE FROM jobs WHERE job_no = ?", expired)


def _remove_slice(database: Database) -> bool:
    """Whether there was anything to remove."""
    with database.begin_write() as connection:
        found = connection.execute("SELECT job_no FROM forgotten LIMIT 1").fetchone()
        if not found:
            return False
        if (
            connection.execute(_REMOVE, (*found, _MAX_TASKS_PER_SLICE)).rowcount
            < _MAX_TASKS_PER_SLICE
        ):
            connection.execute("DELETE FROM forgotten WHERE job_no = ?", found)
        return True
