"""A job store on rows: every call is one transaction on the tables jobs and tasks."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from holdfast.exports import transitions
from holdfast.exports.errors import JobExists
from holdfast.exports.model import ExportJob, ExportTask, JobStatus, TaskResult, TaskStatus
from holdfast.exports.ports import JobChange, JobStateRepository
from holdfast.exports.rows import (
    find_changes,
    job_from_row,
    row_from_job,
    row_from_result,
    row_from_task,
    task_from_row,
)
from holdfast.exports.transitions import Rule
from holdfast.lease.clock import Clock
from holdfast.store.rows import RowDatabase, Rows

_TASKS_AT_ONCE = 1_000  # per transaction, so that other writers are not kept waiting


class RowJobStore(JobStateRepository):
    """A store that only has to read and write rows."""

    def __init__(self, database: RowDatabase, clock: Clock, keep_seconds: float | None) -> None:
        super().__init__(clock, keep_seconds)
        self._database = database

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def save(self, job: ExportJob) -> None:
        """Store a new job. Raises JobExists."""
        with self._database.begin_write() as rows:
            if not rows.insert("jobs", [row_from_job(job)]):
                raise JobExists(f"job {job.job_id!r} exists already")

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the current job, or None if there is none."""
        with self._database.begin_read() as rows:
            found = rows.select("jobs", {"job_id": job_id})
        return job_from_row(found[0]) if found else None

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return all jobs with this status, the oldest first."""
        with self._database.begin_read() as rows:
            found = rows.select("jobs", {"status": status.value}, order_by="created_at")
        return [job_from_row(row) for row in found]

    # -- tasks

    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        """Store the tasks that are missing, as pending."""
        # Read the caller's tasks outside the transaction, because a listing may be slow.
        remaining = iter(tasks)
        self._add_slice(job_id, list(islice(remaining, _TASKS_AT_ONCE)))
        while slice_ := list(islice(remaining, _TASKS_AT_ONCE)):
            self._add_slice(job_id, slice_)

    def _add_slice(self, job_id: str, tasks: list[ExportTask]) -> None:
        with self._database.begin_write() as rows:
            job_no, job = _require_job(rows, job_id)
            self._apply(rows, job_no, job, transitions.accept_tasks)
            rows.insert("tasks", [row_from_task(job_no, task) for task in tasks])

    def tasks(
        self,
        job_id: str,
        *,
        status: TaskStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[ExportTask]:
        """Return up to `limit` tasks in the order of their ids."""
        with self._database.begin_read() as rows:
            job_no, _ = _require_job(rows, job_id)
            where: dict[str, Any] = {"job_no": job_no, "task_id >": after or ""}
            if status is not None:
                where["status"] = status.value
            page = rows.select("tasks", where, order_by="task_id", limit=limit)
        return [task_from_row(job_id, row) for row in page]

    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        """Count results and return how many were new."""
        with self._database.begin_write() as rows:
            return self._count(rows, *_require_job(rows, job_id), results)

    def _count_unlisted(self, result: TaskResult) -> None:
        with self._database.begin_write() as rows:
            job_no, job = _require_job(rows, result.job_id)
            unlisted = ExportTask(result.job_id, result.task_id, "", "")
            rows.insert("tasks", [row_from_task(job_no, unlisted)])
            self._count(rows, job_no, job, [result])

    def _count(
        self, rows: Rows, job_no: int, job: ExportJob, results: Sequence[TaskResult]
    ) -> int:
        """Finish the tasks and count them. If the job refuses, the rows are rolled back."""
        first_results = transitions.keep_first_results(job.job_id, results).values()
        completed = _finish_tasks(
            rows, job_no, [result for result in first_results if result.success]
        )
        failed = _finish_tasks(
            rows, job_no, [result for result in first_results if not result.success]
        )
        self._apply(rows, job_no, job, transitions.count_results, completed, failed)
        return completed + failed

    # -- the job

    def _change(
        self, job_id: str, rule: Rule, *arguments: Any, return_before: bool = False
    ) -> JobChange:
        with self._database.begin_write() as rows:
            job_no, job = _require_job(rows, job_id)
            after = self._apply(rows, job_no, job, rule, *arguments)
        return JobChange(job if return_before else after, after is not job)

    def _apply(
        self, rows: Rows, job_no: int, job: ExportJob, rule: Rule, *arguments: Any
    ) -> ExportJob:
        """Apply the rule within the caller's transaction, and write what it changed."""
        now = self._clock.time()
        after = transitions.apply_rule(rule, job, now, self._keep_seconds, *arguments)
        if changes := find_changes(job, after):
            rows.update("jobs", [(changes, {"job_no": job_no})])
        return after


def _require_job(rows: Rows, job_id: str) -> tuple[int, ExportJob]:
    for row in rows.select("jobs", {"job_id": job_id}):
        return row["job_no"], job_from_row(row)
    raise transitions.build_not_found_error(job_id)


def _finish_tasks(rows: Rows, job_no: int, results: Iterable[TaskResult]) -> int:
    """Finish those tasks that are pending, so that no task is counted twice.

    Returns how many were finished.
    """
    pending = {"job_no": job_no, "status": TaskStatus.PENDING.value}
    updates = [
        (row_from_result(result), {**pending, "task_id": result.task_id}) for result in results
    ]
    return rows.update("tasks", updates)
