"""The job store in a SQLite file, for all threads and processes of one machine."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from sqlite3 import Connection

from holdfast.adapters.local.sqlite import retention
from holdfast.adapters.local.sqlite.connection import Durability
from holdfast.adapters.local.sqlite.database import Database
from holdfast.adapters.local.sqlite.jobs import rules, tasks
from holdfast.adapters.local.sqlite.jobs.rows import (
    job_from_row,
    mutable_row_from_job,
    read_rows,
    row_from_job,
    task_from_row,
)
from holdfast.adapters.local.sqlite.jobs.schema import JOBS
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.jobs.errors import JobExists, JobNotFound, StoreUnavailable
from holdfast.jobs.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.jobs.ports import JobStateRepository

BY_STATUS = "SELECT * FROM jobs WHERE status = ? ORDER BY created_at"
_TASKS_AT_ONCE = 1_000  # per transaction, so that other writers are not kept waiting

Rule = Callable[[ExportJob], ExportJob | None]


class SQLiteJobs(JobStateRepository):
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
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._database = Database(Path(path), JOBS, durability, busy_seconds)

    def __repr__(self) -> str:
        return f"SQLiteJobs({str(self._database.path)!r})"

    # -- the seed's operations

    def save(self, job: ExportJob) -> None:
        """Store a new job. Raises JobExists."""
        row = row_from_job(job)
        columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
        with self._database.begin_write() as connection:
            added = connection.execute(
                f"INSERT INTO jobs ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING",  # noqa: S608 - our own names
                row,
            )
            if not added.rowcount:
                raise JobExists(f"job {job.job_id!r} exists already")

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the current job, or None if there is none."""
        with self._database.begin_read() as connection:
            numbered_job = _find(connection, job_id)
        return numbered_job[1] if numbered_job else None

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return all jobs with this status, the oldest first."""
        with self._database.begin_read() as connection:
            rows = read_rows(connection.execute(BY_STATUS, (status.value,)))
        return [job_from_row(row) for row in rows]

    def update_job_status(
        self, job_id: str, status: JobStatus, error: JobError | None = None
    ) -> None:
        """Move the job to this status. Raises IllegalTransition."""
        self._change(
            job_id, lambda job: rules.move_job(job, status, error, *self._get_end_times())
        )

    def update_job_state(self, job_id: str, state: JobState) -> None:
        """Move the job if its counters are those of `state`. Raises IllegalTransition."""

        def move(job: ExportJob) -> ExportJob | None:
            rules.require_counters(job, state)
            return rules.move_job(job, state.status, None, *self._get_end_times())

        self._change(job_id, move)

    def increment_completed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """Count a task as completed."""
        self._increment(job_id, task_id, success=True)

    def increment_failed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """Count a task as failed."""
        self._increment(job_id, task_id, success=False)

    def _increment(self, job_id: str, task_id: str | None, *, success: bool) -> None:
        with self._database.begin_write() as connection:
            job_no, job = _require_job(connection, job_id)
            if task_id is None:
                task_id = tasks.insert_unnamed(connection, job_no)
            self._count_results(connection, job_no, job, [TaskResult(job_id, task_id, success)])

    def set_total_tasks(self, job_id: str, total_tasks: int) -> None:
        """Seal the job with this number of tasks."""
        self._change(job_id, lambda job: rules.seal_job(job, total_tasks))

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
            rules.require_open(job)
            tasks.insert_tasks(connection, job_no, new_tasks)
            self._write(connection, job_no, job, job)

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
            return self._count_results(connection, *_require_job(connection, job_id), results)

    def _count_results(
        self, connection: Connection, job_no: int, job: ExportJob, results: Sequence[TaskResult]
    ) -> int:
        rules.require_counting(job)
        completed, failed = tasks.finish_tasks(connection, job_no, results)
        counted = rules.count_results(job, completed, failed, self._clock.time())
        if counted is not None:
            self._write(connection, job_no, job, counted)
        return completed + failed

    def note_progress(self, job_id: str) -> None:
        """Record that the job made progress."""
        self._change(job_id, lambda job: rules.record_progress(job, self._clock.time()))

    # -- the outcome and its callback

    def claim_outcome(self, job_id: str) -> ExportJob | None:
        """Decide the outcome once all results are in. Return the job, or None."""
        return self._change(job_id, rules.claim_outcome)[1]

    def give_up(self, job_id: str, error: JobError) -> ExportJob | None:
        """Decide the job as failed. Return the job, or None if its outcome is decided."""
        return self._change(job_id, lambda job: rules.give_up_job(job, error))[1]

    def begin_callback(self, job_id: str, *, again_after_seconds: float) -> ExportJob | None:
        """Begin a callback attempt. Return the job before it, or None if none may begin."""

        def begin(job: ExportJob) -> ExportJob | None:
            return rules.begin_attempt(job, self._clock.time(), again_after_seconds)

        before, after = self._change(job_id, begin)
        return before if after else None

    def end_callback(self, job_id: str, *, in_doubt: bool) -> None:
        """End an unsuccessful callback attempt."""
        self._change(job_id, lambda job: rules.end_attempt(job, in_doubt))

    def settle(self, job_id: str, status: JobStatus, error: JobError | None) -> bool:
        """Settle the job and delete expired ones. Return False if no callback is pending."""
        _, settled = self._change(
            job_id, lambda job: rules.settle_job(job, status, error, *self._get_end_times())
        )
        if settled and self._keep_seconds is not None:
            # The job is settled even if this fails; the next settled job tries again.
            with suppress(StoreUnavailable):
                retention.delete_expired_jobs(
                    self._database, self._clock.time(), settled.state.processed_tasks
                )
        return settled is not None

    def attach_token(self, job_id: str, token: TaskToken) -> ExportJob:
        """Attach the token of a new execution and return the job. Raises JobClosed."""
        before, after = self._change(job_id, lambda job: rules.attach_token(job, token))
        return after or before

    # -- the store itself

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def _get_end_times(self) -> tuple[float, int | None]:
        """Return when a job that ends now ended, and when it may be deleted."""
        now = self._clock.time()
        return now, None if self._keep_seconds is None else int(now + self._keep_seconds)

    def _change(self, job_id: str, rule: Rule) -> tuple[ExportJob, ExportJob | None]:
        """Return the job before and after the rule; None after it means that
        nothing changed.
        """
        with self._database.begin_write() as connection:
            job_no, job = _require_job(connection, job_id)
            after = rule(job)
            if after is None:
                return job, None
            return job, self._write(connection, job_no, job, after)

    def _write(
        self, connection: Connection, job_no: int, before: ExportJob, after: ExportJob
    ) -> ExportJob:
        after = replace(after, updated_at=self._clock.time())
        old_row, row = mutable_row_from_job(before), mutable_row_from_job(after)
        # Unchanged columns are not named, because SQLite would write their indexes again.
        changed = {name: value for name, value in row.items() if value != old_row[name]}
        if changed:
            columns = ", ".join(f"{name} = :{name}" for name in changed)
            connection.execute(
                f"UPDATE jobs SET {columns} WHERE job_no = :job_no",  # noqa: S608 - our own names
                {**changed, "job_no": job_no},
            )
        return after


def _find(connection: Connection, job_id: str) -> tuple[int, ExportJob] | None:
    rows = read_rows(connection.execute("SELECT * FROM jobs WHERE job_id = ?", (job_id,)))
    return (rows[0]["job_no"], job_from_row(rows[0])) if rows else None


def _require_job(connection: Connection, job_id: str) -> tuple[int, ExportJob]:
    numbered_job = _find(connection, job_id)
    if numbered_job is None:
        raise JobNotFound(f"job {job_id!r} does not exist")
    return numbered_job
