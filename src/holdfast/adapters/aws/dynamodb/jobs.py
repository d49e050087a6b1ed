"""DynamoDBJobs: the job store on Amazon DynamoDB.

    save               PutItem if there is none
    results, listing   TransactWriteItems on task rows and the job's row
    all other methods  one UpdateItem with a named condition

Only the outcome is read first and written later. Its condition contains the values that it was
derived from.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.adapters.aws.dynamodb import items, updates
from holdfast.adapters.aws.dynamodb.client import ConditionFailed, DynamoDBClient
from holdfast.adapters.aws.dynamodb.rows import JobRows, RowUpdated
from holdfast.adapters.aws.dynamodb.tables import JOBS, TASKS, JobTables, format_tables_command
from holdfast.adapters.aws.dynamodb.task_transactions import TasksRefused, TaskTransactions
from holdfast.adapters.aws.dynamodb.updates import JobUpdate, WriteTime
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import HoldfastError
from holdfast.jobs.errors import (
    AlreadySealed,
    IllegalTransition,
    JobClosed,
    JobExists,
    JobNotFound,
)
from holdfast.jobs.model import (
    CallbackState,
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

_log = logging.getLogger("holdfast")


class DynamoDBJobs(JobStateRepository):
    """Jobs in two DynamoDB tables, which `create_tables` creates.

    `keep_seconds` is how long the row of a finished job is kept, and a task's row from its
    result on; None keeps rows forever. It must be longer than any job takes, because a job that
    is listed again would otherwise miss tasks that it has counted and count them twice.
    """

    def __init__(
        self,
        *,
        jobs_table: str = JOBS,
        tasks_table: str = TASKS,
        client: Any = None,
        clock: Clock = SYSTEM_CLOCK,
        keep_seconds: float | None = None,
    ) -> None:
        tables = JobTables(jobs_table, tasks_table)
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._client = DynamoDBClient(
            client, clock, tables_command=format_tables_command(tables)
        )
        self._rows = JobRows(self._client, tables)
        self._task_transactions = TaskTransactions(self._client, tables)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _get_write_time(self) -> WriteTime:
        now, keep = self._clock.time(), self._keep_seconds
        return WriteTime(items.format_time(now), None if keep is None else int(now + keep))

    # -- the seed's operations

    def save(self, job: ExportJob) -> None:
        """Store a new job. Raises JobExists."""
        if not self._rows.put(job):
            raise JobExists(f"job {items.shorten_name(job.job_id)} exists already")

    def find_by_id(self, job_id: str) -> ExportJob | None:
        """Return the current job, or None if there is none."""
        try:
            return items.job_from_row(self._rows.read_job(job_id))
        except JobNotFound:
            return None

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        """Return all jobs with this status, found through the index and checked by
        their rows.
        """
        try:
            jobs = [items.job_from_row(row) for row in self._rows.read_by_status(status)]
        except HoldfastError as error:
            _log.error("Failed to query jobs by status %s: %s", status, error)
            raise
        _log.debug("Found %d jobs with status %s", len(jobs), status)
        return jobs

    def update_job_status(
        self, job_id: str, status: JobStatus, error: JobError | None = None
    ) -> None:
        """Move the job to this status. Raises IllegalTransition."""
        job = self._move_or_read(
            job_id, updates.move_job(status, error, None, self._get_write_time())
        )
        if job is not None and job.status is not status:
            raise _build_not_moved_error(job, status)

    def update_job_state(self, job_id: str, state: JobState) -> None:
        """Move the job if its counters are those of `state`. Raises IllegalTransition."""
        job = self._move_or_read(
            job_id, updates.move_job(state.status, None, state, self._get_write_time())
        )
        if job is None or job.state == state:
            return
        if replace(job.state, status=state.status) != state:
            raise IllegalTransition(
                "counters change only through results, and the job has different ones"
            )
        raise _build_not_moved_error(job, state.status)

    def _move_or_read(self, job_id: str, update: JobUpdate | None) -> ExportJob | None:
        """Move the job. Return the current job if it was not moved, otherwise None."""
        if update is None:
            return items.job_from_row(self._rows.read_job(job_id))
        result = self._rows.change(job_id, update)
        return items.job_from_row(result.row) if isinstance(result, ConditionFailed) else None

    def increment_completed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """Count a task as completed."""
        self._increment(job_id, task_id, success=True)

    def increment_failed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        """Count a task as failed."""
        self._increment(job_id, task_id, success=False)

    def _increment(self, job_id: str, task_id: str | None, *, success: bool) -> None:
        if task_id is not None:
            self.record_results(job_id, [TaskResult(job_id, task_id, success)])
            return
        result = self._task_transactions.record_unnamed(job_id, success, self._get_write_time())
        if isinstance(result, TasksRefused):
            raise _build_not_counted_error(_require_job(job_id, result.row))

    def set_total_tasks(self, job_id: str, total_tasks: int) -> None:
        """Seal the job with this number of tasks."""
        if total_tasks < 0:
            raise ValueError(f"total_tasks must be 0 or more, got {total_tasks}")
        result = self._rows.change(
            job_id, updates.seal_job(total_tasks, self._get_write_time())
        )
        if isinstance(result, ConditionFailed):
            job = items.job_from_row(result.row)
            if not (job.sealed and job.state.total_tasks == total_tasks):
                raise _build_not_listed_error(job)

    # -- tasks

    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        """Store the tasks that are missing, as pending."""
        added = self._task_transactions.add(job_id, tasks, self._get_write_time())
        if isinstance(added, TasksRefused):
            raise _build_not_listed_error(_require_job(job_id, added.row))
        if added == 0:  # in this case no transaction checked the job
            job = items.job_from_row(self._rows.read_job(job_id))
            if job.sealed or _is_decided(job):
                raise _build_not_listed_error(job)

    def tasks(
        self,
        job_id: str,
        *,
        status: TaskStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[ExportTask]:
        """Return up to `limit` tasks in the order of their ids."""
        self._rows.read_job(job_id)
        return list(self._rows.read_tasks(job_id, status, after, limit))

    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        """Count results and return how many were new."""
        counted = self._task_transactions.record(job_id, results, self._get_write_time())
        if isinstance(counted, TasksRefused):
            raise _build_not_counted_error(_require_job(job_id, counted.row))
        if counted == 0:
            job = items.job_from_row(self._rows.read_job(job_id))
            if job.status is not JobStatus.DOWNLOADING or _is_decided(job):
                raise _build_not_counted_error(job)
        return counted

    def note_progress(self, job_id: str) -> None:
        """Record that the job made progress."""
        self._rows.change(job_id, updates.record_progress(self._get_write_time()))

    # -- the outcome and its callback

    def claim_outcome(self, job_id: str) -> ExportJob | None:
        """Decide the outcome once all results are in. Return the job, or None."""
        # This is called after every result and is nearly always too early. A read is cheaper
        # than a refused write, and it does not delay the callers that count.
        job = items.job_from_row(self._rows.read_job(job_id))
        if not job.all_counted:
            return None
        return self._try_to_decide(
            job_id, updates.claim_outcome(job.state.failed_tasks, self._get_write_time())
        )

    def give_up(self, job_id: str, error: JobError) -> ExportJob | None:
        """Decide the job as failed. Return the job, or None if its outcome is decided."""
        return self._try_to_decide(job_id, updates.give_up_job(error, self._get_write_time()))

    def _try_to_decide(self, job_id: str, decision: JobUpdate) -> ExportJob | None:
        result = self._rows.change(job_id, decision)
        return items.job_from_row(result.row) if isinstance(result, RowUpdated) else None

    def begin_callback(self, job_id: str, *, again_after_seconds: float) -> ExportJob | None:
        """Begin a callback attempt. Return the job before it, or None if none may begin."""
        before = items.format_time(self._clock.time() - again_after_seconds)
        attempt = updates.begin_attempt(self._get_write_time(), before=before)
        result = self._rows.change(job_id, attempt, returns="ALL_OLD")
        if isinstance(result, ConditionFailed):
            return None
        return (
            items.restore_before_attempt(result.row)
            if result.response_lost
            else items.job_from_row(result.row)
        )

    def end_callback(self, job_id: str, *, in_doubt: bool) -> None:
        """End an unsuccessful callback attempt."""
        self._rows.change(job_id, updates.end_attempt(in_doubt, self._get_write_time()))

    def settle(self, job_id: str, status: JobStatus, error: JobError | None) -> bool:
        """Settle the job. Return False if no callback is pending."""
        if not status.terminal:
            raise IllegalTransition(f"a job cannot end as {status}")
        result = self._rows.change(
            job_id, updates.settle_job(status, error, self._get_write_time())
        )
        return isinstance(result, RowUpdated)

    def attach_token(self, job_id: str, token: TaskToken) -> ExportJob:
        """Attach the token of a new execution and return the job. Raises JobClosed."""
        result = self._rows.change(job_id, updates.attach_token(token, self._get_write_time()))
        job = items.job_from_row(result.row)
        if isinstance(result, ConditionFailed) and not job.has_seen(token):
            raise JobClosed(f"{_describe_state(job)}: it accepts no other token")
        return job


def _is_decided(job: ExportJob) -> bool:
    return job.terminal or job.callback.state is not CallbackState.NONE


def _describe_state(job: ExportJob) -> str:
    state = (
        "its outcome is decided" if _is_decided(job) and not job.terminal else str(job.status)
    )
    return f"job {items.shorten_name(job.job_id)}: {state}"


def _require_job(job_id: str, row: items.Row) -> ExportJob:
    if not row:
        raise items.build_not_found_error(job_id)
    return items.job_from_row(row)


def _build_not_counted_error(job: ExportJob) -> HoldfastError:
    return JobClosed(f"{_describe_state(job)}: it counts no results")


def _build_not_listed_error(job: ExportJob) -> HoldfastError:
    if _is_decided(job):
        return JobClosed(f"{_describe_state(job)}: it accepts no more tasks")
    name, total = items.shorten_name(job.job_id), job.state.total_tasks
    return AlreadySealed(f"job {name} is sealed with {total} tasks")


def _build_not_moved_error(job: ExportJob, status: JobStatus) -> IllegalTransition:
    obstacle = (
        "its token waits for a callback"
        if job.has_task_token() and status.terminal
        else f"{job.state.processed_tasks} of {job.state.total_tasks} tasks are counted, "
        f"{job.state.failed_tasks} failed"
    )
    return IllegalTransition(f"{_describe_state(job)}, {obstacle}: it cannot become {status}")
