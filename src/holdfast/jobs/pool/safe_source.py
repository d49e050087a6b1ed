"""The source of tasks, as the pool uses it: its errors never cost the tasks that run."""

import logging

from holdfast.jobs.model import JobError, TaskResult
from holdfast.jobs.pool.ports import Assignment, TaskSource
from holdfast.jobs.pool.wire import CANCELLED, TaskReport
from holdfast.jobs.pool.worker import RunningTask

_log = logging.getLogger("holdfast")


class SafeTaskSource:
    def __init__(self, source: TaskSource) -> None:
        self._source = source

    def take(self) -> Assignment | None:
        try:
            return self._source.take()
        except Exception:
            _log.exception("the source of tasks failed to give one")
            return None

    def completed(self, run: RunningTask, said: TaskReport) -> None:
        """The work ended. A failure after a cancel is what was asked for: no result.

        A job can be taken up again while tasks of its last run are being cancelled; the
        work cannot tell them apart. Who was cancelled by mistake is done again.
        """
        task = run.attempt.assignment
        error = None if said.error is None else JobError(*said.error)
        if error is not None and (run.cancelled or error.code == CANCELLED):
            self.returned(task)
        else:
            ids = (task.job_id, task.task_id)
            self._finished(TaskResult(*ids, said.success, said.bytes_processed, error))

    def failed(self, task: Assignment, code: str, message: str) -> None:
        error = JobError(code, message)
        self._finished(TaskResult(task.job_id, task.task_id, False, 0, error))

    def returned(self, task: Assignment) -> None:
        try:
            self._source.returned(task)
        except Exception:
            _log.exception("the source of tasks failed to take one back")

    def _finished(self, result: TaskResult) -> None:
        try:
            self._source.finished(result)
        except Exception:
            _log.exception("the source of tasks failed to take a result")
