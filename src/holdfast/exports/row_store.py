"""The job store on rows: every call is one transaction on the tables jobs and tasks."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.errors import HoldfastError
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
from holdfast.store.rows import Row, RowDatabase, Rows

_log = logging.getLogger("holdfast")


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
        row = row_from_job(job)
        if not self._database.write(lambda rows: rows.insert("jobs", [row])):
            raise JobExists(f"job {transitions.shorten_name(job.job_id)} exists already")

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the current job, or None if there is none."""
        found = self._database.read(lambda rows: rows.select("jobs", {"job_id": job_id}))
        return job_from_row(found[0]) if found else None

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return all jobs with this status, the oldest first."""
        where = {"status": status.value}
        try:
            found = self._database.read(
                lambda rows: rows.select("jobs", where, order_by="created_at")
            )
        except HoldfastError as error:
            _log.error("Failed to query jobs by status %s: %s", status, error)
            raise
        _log.debug("Found %d jobs with status %s", len(found), status)
        return [job_from_row(row) for row in found]

    # -- tasks

    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        """Store the tasks that are missing, as pending."""
        # The caller's tasks are read outside a transaction, because a listing may be slow.
        groups = self._database.split(tasks, self._measure_task)
        self._add_group(job_id, next(groups, []))
        for group in groups:
            self._add_group(job_id, group)

    def _add_group(self, job_id: str, group: Sequence[ExportTask]) -> None:
        def add(rows: Rows) -> None:
            job_no, job = _require_job(rows, job_id)
            self._apply(rows, job_no, job, transitions.accept_tasks)
            rows.insert("tasks", [row_from_task(job_no, task) for task in group])

        self._database.write(add)

    def _measure_task(self, _task: ExportTask) -> int:
        """Return the bytes of a task's row, where they are limited."""
        return 0

    def tasks(
        self,
        job_id: str,
        *,
        status: TaskStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[ExportTask]:
        """Return up to `limit` tasks in the order of their ids."""

        def read(rows: Rows) -> Sequence[Row]:
            job_no, _ = _require_job(rows, job_id)
            where: dict[str, Any] = {"job_no": job_no, "task_id >": after or ""}
            if status is not None:
                where["status"] = status.value
            return rows.select("tasks", where, order_by="task_id", limit=limit)

        return [task_from_row(job_id, row) for row in self._database.read(read)]

    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        """Count results and return how many were new."""
        first_results = transitions.keep_first_results(job_id, results).values()
        groups = list(self._database.split(first_results, None)) or [[]]
        return sum(self._count_group(job_id, group) for group in groups)

    def _count_group(self, job_id: str, group: Sequence[TaskResult]) -> int:
        """Finish the tasks and count them. If the job refuses, nothing is written."""

        def count(rows: Rows) -> int:
            job_no, job = _require_job(rows, job_id)
            completed, failed = (
                self._finish_tasks(rows, job_no, (r for r in group if r.success is success))
                for success in (True, False)
            )
            self._apply(rows, job_no, job, transitions.count_results, completed, failed)
            return completed + failed

        return self._database.write(count)

    def _finish_tasks(self, rows: Rows, job_no: Any, results: Iterable[TaskResult]) -> int:
        """Finish those tasks that are pending, so that no task is counted twice.

        Returns how many were finished.
        """
        pending = {"job_no": job_no, "status": TaskStatus.PENDING.value}
        updates = [
            (self._row_from_result(result), {**pending, "task_id": result.task_id})
            for result in results
        ]
        return rows.update("tasks", updates)

    def _count_unlisted(self, result: TaskResult) -> None:
        def count(rows: Rows) -> None:
            job_no, job = _require_job(rows, result.job_id)
            unlisted = row_from_task(job_no, ExportTask(result.job_id, result.task_id, "", ""))
            added = rows.insert("tasks", [{**unlisted, **self._row_from_result(result)}])
            counted = (added, 0) if result.success else (0, added)
            self._apply(rows, job_no, job, transitions.count_results, *counted)

        self._database.write(count)

    def _row_from_result(self, result: TaskResult) -> dict[str, Any]:
        return row_from_result(result)

    # -- the job

    def _change(
        self, job_id: str, rule: Rule, *arguments: Any, return_before: bool = False
    ) -> JobChange:
        def change(rows: Rows) -> JobChange:
            job_no, job = _require_job(rows, job_id)
            after = self._apply(rows, job_no, job, rule, *arguments)
            return JobChange(job if return_before else after, after is not job)

        return self._database.write(change)

    def _apply(
        self, rows: Rows, job_no: Any, job: ExportJob, rule: Rule, *arguments: Any
    ) -> ExportJob:
        """Apply the rule within the caller's transaction, and write what it changed."""
        now = self._clock.time()
        after = transitions.apply_rule(rule, job, now, self._keep_seconds, *arguments)
        if after is not job:
            changes = find_changes(job, after) or {"updated_at": now}
            rows.update("jobs", [(changes, {"job_no": job_no})])
        return after


def _require_job(rows: Rows, job_id: str) -> tuple[Any, ExportJob]:
    """Return the job, and the number by which its tasks refer to it."""
    for row in rows.select("jobs", {"job_id": job_id}):
        return row["job_no"], job_from_row(row)
    raise transitions.build_not_found_error(job_id)
