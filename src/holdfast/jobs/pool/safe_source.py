"""A wrapper of the source of tasks that logs its errors, so that running tasks go on."""

import logging

from holdfast.jobs.model import JobError, TaskResult
from holdfast.jobs.pool.ports import Assignment, TaskSource
from holdfast.jobs.pool.wire import CANCELLED, TaskReport
from holdfast.jobs.pool.worker import RunningTask

_log = logging.getLogger("holdfast")


class SafeTaskSource:
    """The source of tasks as the supervisor uses it. Its methods never raise."""

    def __init__(self, source: TaskSource) -> None:
        self._source = source

    def take(self) -> Assignment | None:
        """Return the next task, or None if there is none or the source failed."""
        try:
            return self._source.take()
        except Exception:
            _log.exception("the source of tasks failed to give one")
            return None

    def complete(self, run: RunningTask, report: TaskReport) -> None:
        """Pass on the result of a task, or give the task back if it was cancelled.

        A failure after a cancel was requested, so it is not a result. A job can be resumed
        while tasks of its last run are being cancelled, and the handler cannot tell the two
        runs apart. So a task that was cancelled by mistake is given back and done again.
        """
        task = run.attempt.assignment
        error = None if report.error is None else JobError(*report.error)
        if error is not None and (run.cancelled or error.code == CANCELLED):
            self.give_back(task)
        else:
            ids = (task.job_id, task.task_id)
            self._finish(TaskResult(*ids, report.success, report.bytes_processed, error))

    def fail(self, task: Assignment, code: str, message: str) -> None:
        """Pass on that the task failed with this error."""
        error = JobError(code, message)
        self._finish(TaskResult(task.job_id, task.task_id, False, 0, error))

    def give_back(self, task: Assignment) -> None:
        """Give the task back without a result."""
        try:
            self._source.give_back(task)
        except Exception:
            _log.exception("the source of tasks failed to take one back")

    def _finish(self, result: TaskResult) -> None:
        try:
            self._source.finish(result)
        except Exception:
            _log.exception("the source of tasks failed to take a result")
