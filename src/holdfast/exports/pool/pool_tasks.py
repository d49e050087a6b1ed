"""The tasks of a pool, between their source and the workers. For the pool's thread.

the worker       its tasks
reports a task   finished with the reported result
ends in any      done again, alone on a worker, if attempts are left; otherwise failed
way              with WorkerDied or TaskTimedOut
the pool stops   finished in time, or given back
"""

import logging
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from holdfast.errors import MessageTooLarge
from holdfast.events import Events
from holdfast.exports.events import TaskRetried
from holdfast.exports.model import JobError, TaskResult
from holdfast.exports.pool import wire
from holdfast.exports.pool.worker import Assignment, PoolWorker, TaskAttempt, TaskSource
from holdfast.process.frames import PULSE

_log = logging.getLogger("holdfast")


class PoolTasks:
    """Takes tasks from the source, and finishes each or gives it back, once.

    An error of the source is logged, so that other tasks go on.
    """

    def __init__(self, source: TaskSource, max_attempts: int, events: Events) -> None:
        self._source = source
        self._max_attempts = max_attempts
        self._events = events
        self._retries: deque[TaskAttempt] = deque()
        self._nonces = count(1)

    # -- to the workers

    def take(self) -> TaskAttempt | None:
        """Take the next task from the source, or None if there is none now."""
        task: Assignment | None = self._call("give one", self._source.take)
        return None if task is None else TaskAttempt(task)

    def take_retry(self) -> TaskAttempt | None:
        """Take a suspect, which needs a worker to itself, or None if there is none."""
        return self._retries.popleft() if self._retries else None

    def assign(self, worker: PoolWorker, attempt: TaskAttempt, now: float) -> None:
        """Have the worker do the task. A task that cannot be sent has failed."""
        try:
            worker.assign(attempt, next(self._nonces), now)
        except (TypeError, ValueError, RecursionError, MessageTooLarge):
            # The error's own text is left out, because it quotes the payload.
            problem = "the task is not plain data, or larger than 2 MiB"
            self._finish(attempt, error=JobError("InvalidTask", problem))

    # -- from the workers

    def handle_frame(self, worker: PoolWorker, number: int, frame: bytes) -> None:
        """Note the progress of a worker, or the result of one of its tasks.

        Raises BrokenFrame if the frame is invalid.
        """
        if frame[:1] == PULSE:
            worker.record_progress(wire.unpack_progress(frame))
            return
        done, error = wire.unpack_completed(frame)
        # Any other nonce belongs to an attempt that this worker no longer has.
        if (run := worker.running.pop(number, None)) is not None:
            worker.finished_task = True
            self._complete(run, done, None if error is None else JobError(*error))

    def _complete(self, run: TaskAttempt, done: int, error: JobError | None) -> None:
        """Pass on the result of a task, or give the task back if it was cancelled.

        A failure after a cancel was requested, so it is not a result. A job can be resumed
        while tasks of its last run are being cancelled, and the handler cannot tell the two
        runs apart. So a task that was cancelled by mistake is given back and done again.
        """
        if error is not None and (run.cancelled or error.code == wire.CANCELLED):
            self.give_back(run)
        else:
            self._finish(run, done, error)

    def requeue_tasks(self, worker: PoolWorker, reason: str) -> None:
        """Give each task of a worker that is gone another attempt, if it has one left.

        A task fails only if it must have caused the worker's end.
        """
        is_alone = len(worker.running) == 1
        for run in worker.running.values():
            task, number = run.assignment, run.number
            if run.cancelled:
                self.give_back(run)
            elif (is_alone or run.overdue) and number >= self._max_attempts:
                code = "TaskTimedOut" if run.overdue else "WorkerDied"
                message = f"given up after attempt {number}; the worker: {reason}"
                self._finish(run, error=JobError(code, message))
            else:
                self._retries.append(TaskAttempt(task, number + 1, suspect=True))
                self._events.emit(TaskRetried(task.job_id, task.task_id, number + 1, reason))

    # -- to the source

    def give_back_retries(self, job_id: str | None = None) -> None:
        """Give back the tasks that wait for another attempt, all or those of a job."""
        retries, self._retries = self._retries, deque()
        for retry in retries:
            if job_id in (None, retry.assignment.job_id):
                self.give_back(retry)
            else:
                self._retries.append(retry)

    def give_back(self, *attempts: TaskAttempt) -> None:
        """Give tasks back to the source without a result."""
        for attempt in attempts:
            self._call("take one back", self._source.give_back, attempt.assignment)

    def _finish(
        self, attempt: TaskAttempt, done: int = 0, error: JobError | None = None
    ) -> None:
        task = attempt.assignment
        result = TaskResult(task.job_id, task.task_id, error is None, done, error)
        self._call("take a result", self._source.finish, result)

    def _call(self, purpose: str, method: Callable[..., Any], *args: Any) -> Any:
        try:
            return method(*args)
        except Exception:
            _log.exception("the source of tasks failed to %s", purpose)
            return None
