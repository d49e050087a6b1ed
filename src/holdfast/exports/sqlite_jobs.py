"""The job store in a SQLite file, for all threads and processes of one machine."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.exports import transitions
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.ports import JobChange
from holdfast.exports.row_store import RowJobStore
from holdfast.exports.transitions import Rule
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.sqlite.connection import Durability, Schema
from holdfast.store.sqlite.database import Database, MemoryDatabase

# Tasks refer to their job by number. No number is used twice, so a remaining task of a deleted
# job can never be taken for a task of a later job with the same id. Tasks are stored in the
# order of their ids, which is also the order of the work. Results that arrive together are
# therefore written to neighbouring pages, however many tasks there are.
JOBS = Schema(
    name="job store",
    content="jobs",
    version=1,
    tables="""
CREATE TABLE jobs (
    job_no INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    export_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    status TEXT NOT NULL,
    total_tasks INTEGER NOT NULL,
    completed_tasks INTEGER NOT NULL,
    failed_tasks INTEGER NOT NULL,
    task_token TEXT,
    token_generation INTEGER NOT NULL,
    seen_tokens TEXT NOT NULL,
    sealed INTEGER NOT NULL,
    remaining_tasks INTEGER NOT NULL,
    callback_state TEXT NOT NULL,
    callback_status TEXT NOT NULL,
    callback_error_code TEXT,
    callback_error_message TEXT,
    callback_attempts INTEGER NOT NULL,
    callback_in_doubt INTEGER NOT NULL,
    callback_attempted_at REAL,
    error_code TEXT,
    error_message TEXT,
    metadata TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    last_progress_at REAL NOT NULL,
    completed_at REAL,
    ttl INTEGER,
    token_closed_at REAL
);
CREATE INDEX jobs_by_status ON jobs (status, created_at);
CREATE INDEX jobs_by_ttl ON jobs (ttl) WHERE ttl IS NOT NULL;
CREATE TABLE tasks (
    job_no INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    url TEXT NOT NULL,
    key TEXT NOT NULL,
    checksum TEXT,
    size INTEGER,
    status TEXT NOT NULL,
    bytes_processed INTEGER NOT NULL,
    error_code TEXT,
    error_message TEXT,
    PRIMARY KEY (job_no, task_id)
) WITHOUT ROWID;
CREATE TABLE forgotten (job_no INTEGER PRIMARY KEY);
""",
    added_columns=(("jobs", "token_closed_at", "REAL"),),
)


class SQLiteJobs(RowJobStore):
    """Jobs in a SQLite file.

    With `durability="power"`, completed writes survive a power cut; with "process", a crash of
    this process. `keep_seconds` is how long finished jobs are kept; None keeps them forever.
    `busy_seconds` is how long to wait for other processes before StoreUnavailable.

    Raises ConfigError if the path cannot be used.
    """

    def __init__(
        self,
        path: str | Path | Database,
        *,
        clock: Clock = SYSTEM_CLOCK,
        keep_seconds: float | None = None,
        durability: Durability = "power",
        busy_seconds: float = 10.0,
    ) -> None:
        database = (
            path
            if isinstance(path, Database)
            else Database(Path(path), JOBS, durability, busy_seconds)
        )
        super().__init__(database, clock, keep_seconds)
        self._database: Database = database

    def __repr__(self) -> str:
        return f"SQLiteJobs({str(self._database.path)!r})"

    def _change(
        self, job_id: str, rule: Rule, *arguments: Any, return_before: bool = False
    ) -> JobChange:
        change = super()._change(job_id, rule, *arguments, return_before=return_before)
        is_settled = rule is transitions.settle_job and change.is_made
        if is_settled and self._keep_seconds is not None:
            # The job is settled even if this fails; the next settled job tries again.
            with suppress(StoreUnavailable):
                tasks = change.job.state.processed_tasks
                _delete_expired_jobs(self._database, self._clock.time(), tasks)
        return change


class MemoryJobs(SQLiteJobs):
    """A job store in the memory of this process, for all of its threads.

    With `shared_with`, it is another view of that store's jobs.
    """

    def __init__(
        self,
        shared_with: SQLiteJobs | None = None,
        clock: Clock = SYSTEM_CLOCK,
        keep_seconds: float | None = None,
    ) -> None:
        database = MemoryDatabase(JOBS) if shared_with is None else shared_with._database
        super().__init__(database, clock=clock, keep_seconds=keep_seconds)


# -- retention: finished jobs are deleted when their time has come, in small steps

# First a job is deleted, and its number is noted in the same transaction. Then its tasks are
# deleted, one slice per transaction, so that no other writer waits long. If a process is killed
# in between, other processes delete the rest.

_MAX_JOBS = 20  # in one call
_MAX_TASKS_PER_SLICE = 500  # tasks in one transaction
_MIN_TASKS = 1_000  # in one call

_EXPIRED = "SELECT job_no FROM jobs WHERE ttl <= ? ORDER BY ttl LIMIT ?"
_REMOVE = """
DELETE FROM tasks WHERE (job_no, task_id) IN
    (SELECT job_no, task_id FROM tasks WHERE job_no = ? LIMIT ?)
"""


def _delete_expired_jobs(database: Database, now: float, tasks_of_settled: int) -> None:
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
