"""The job store in a SQLite file, for all threads and processes of one machine."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from holdfast.adapters.local.sqlite import retention
from holdfast.adapters.local.sqlite.connection import Durability
from holdfast.adapters.local.sqlite.database import Database
from holdfast.adapters.local.sqlite.jobs import tasks
from holdfast.adapters.local.sqlite.jobs.rows import (
    find_changes,
    job_from_row,
    row_from_job,
    task_from_row,
)
from holdfast.adapters.local.sqlite.jobs.schema import JOBS
from holdfast.adapters.local.sqlite.rows import read_rows
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.jobs import transitions
from holdfast.jobs.errors import JobExists, StoreUnavailable
from holdfast.jobs.model import (
    ExportJob,
    ExportTask,
    JobStatus,
    TaskResult,
    TaskStatus,
)
from holdfast.jobs.store import JobChange, RuleJobStore
from holdfast.jobs.transitions import Rule

_BY_ID = "SELECT * FROM jobs WHERE job_id = ?"
BY_STATUS = "SELECT * FROM jobs WHERE status = ? ORDER BY created_at"
_TASKS_AT_ONCE = 1_000  # per transaction, so that other writers are not kept waiting


class SQLiteJobs(RuleJobStore):
    """Jobs in a SQLite file.

    With `durability="power"`, completed writes survive a power cut; with "process", a crash of
    this process. `keep_seconds` is how long finished jobs are kept; None keeps them forever.
    `busy_seconds` is how long to wait for other processes before StoreUnavailable.

    Raises ConfigError if the path cannot be used.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        keep_seconds: float | None = None,
        durability: Durability = "power",
        busy_seconds: float = 10.0,
    ) -> None:
        super().__init__(clock, keep_seconds)
        self._database = Database(Path(path), JOBS, durability, busy_seconds)

    def __repr__(self) -> str:
        return f"SQLiteJobs({str(self._database.path)!r})"

    def save(self, job: ExportJob) -> None:
        """Store a new job. Raises JobExists."""
        row = row_from_job(job)
        columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
        statement = f"INSERT INTO jobs ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"  # noqa: S608 - our own names
        if not self._database.execute(statement, row):
            raise JobExists(f"job {job.job_id!r} exists already")

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the current job, or None if there is none."""
        rows = self._database.query(_BY_ID, (job_id,))
        return job_from_row(rows[0]) if rows else None

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return all jobs with this status, the oldest first."""
        rows = self._database.query(BY_STATUS, (status.value,))
        return [job_from_row(row) for row in rows]

    # -- tasks

    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        """Store the tasks that are missing, as pending."""
        # Read the caller's tasks outside the transaction, because a listing may be slow.
        remaining = iter(tasks)
        self._add_slice(job_id, list(islice(remaining, _TASKS_AT_ONCE)))
        while slice_ := list(islice(remaining, _TASKS_AT_ONCE)):
            self._add_slice(job_id, slice_)

    def _add_slice(self, job_id: str, new_tasks: list[ExportTask]) -> None:
        with self._database.begin_write() as connection:
            job_no, job = _require_job(connection, job_id)
            self._apply(connection, job_no, job, transitions.accept_tasks)
            tasks.insert_tasks(connection, job_no, new_tasks)

    def tasks(
        self,
        job_id: str,
        *,
        status: TaskStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[ExportTask]:
        """Return up to `limit` tasks in the order of their ids."""
        with self._database.begin_read() as connection:
            job_no, _ = _require_job(connection, job_id)
            rows = tasks.read_page(connection, job_no, status, after, limit)
        return [task_from_row(job_id, row) for row in rows]

    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        """Count results and return how many were new."""
        with self._database.begin_write() as connection:
            return self._count(connection, *_require_job(connection, job_id), results)

    def _count_unlisted(self, result: TaskResult) -> None:
        with self._database.begin_write() as connection:
            job_no, job = _require_job(connection, result.job_id)
            unlisted = ExportTask(result.job_id, result.task_id, "", "")
            tasks.insert_tasks(connection, job_no, [unlisted])
            self._count(connection, job_no, job, [result])

    def _count(
        self, connection: Connection, job_no: int, job: ExportJob, results: Sequence[TaskResult]
    ) -> int:
        """Finish the tasks and count them. If the job refuses, the rows are rolled back."""
        first_results = transitions.keep_first_results(job.job_id, results)
        completed, failed = tasks.finish_tasks(connection, job_no, first_results.values())
        self._apply(connection, job_no, job, transitions.count_results, completed, failed)
        return completed + failed

    # -- the store itself

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def _change(
        self, job_id: str, rule: Rule, *arguments: Any, return_before: bool = False
    ) -> JobChange:
        with self._database.begin_write() as connection:
            job_no, job = _require_job(connection, job_id)
            after = self._apply(connection, job_no, job, rule, *arguments)
        if rule is transitions.settle_job and after is not job:
            self._delete_expired_jobs(after.state.processed_tasks)
        return JobChange(job if return_before else after, after is not job)

    def _delete_expired_jobs(self, tasks_of_settled: int) -> None:
        if self._keep_seconds is not None:
            # The job is settled even if this fails; the next settled job tries again.
            with suppress(StoreUnavailable):
                retention.delete_expired_jobs(
                    self._database, self._clock.time(), tasks_of_settled
                )

    def _apply(
        self, connection: Connection, job_no: int, job: ExportJob, rule: Rule, *arguments: Any
    ) -> ExportJob:
        """Apply the rule within the caller's transaction, and write what it changed."""
        now = self._clock.time()
        after = transitions.apply_rule(rule, job, now, self._keep_seconds, *arguments)
        if changed := find_changes(job, after):
            columns = ", ".join(f"{name} = :{name}" for name in changed)
            connection.execute(
                f"UPDATE jobs SET {columns} WHERE job_no = :job_no",  # noqa: S608 - our own names
                {**changed, "job_no": job_no},
            )
        return after


def _require_job(connection: Connection, job_id: str) -> tuple[int, ExportJob]:
    rows = read_rows(connection.execute(_BY_ID, (job_id,)))
    if not rows:
        raise transitions.build_not_found_error(job_id)
    return rows[0]["job_no"], job_from_row(rows[0])
