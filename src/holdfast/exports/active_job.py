"""One job while it runs in this process, shared by the job's thread and the pool's thread.

    job's thread    add_page ─▶ ready ─┐            ┌─▶ results ─▶ remove_counted
    pool's thread                      └▶ take … finish
                                 ready ◀─── give_back

Both threads hold the lock only for a moment, and neither waits here for the other's work.
"""

from collections import deque
from collections.abc import Sequence
from threading import Condition

from holdfast.exports.model import ExportTask, TaskResult

PAGE_SIZE = 1000  # about as many tasks of a job are in memory at a time
_LOW = PAGE_SIZE // 4
_MAX_COUNTED_TOGETHER = 990  # results: ten transactions of DynamoDB
_MAX_UNCOUNTED = 5000  # results that may wait while the store does not respond
# A transaction costs much more than a result in it. So a result waits so long for others,
# unless it is the last one. If the process crashes meanwhile, its task is done again.
_GATHER_SECONDS = 0.05


class ActiveJob:
    """The tasks of one job between the store and the pool. Safe for both threads."""

    def __init__(
        self,
        job_id: str,
        job_created_at: float = 0.0,
        gather_seconds: float = _GATHER_SECONDS,
    ) -> None:
        self.job_id = job_id
        self.job_created_at = job_created_at
        self._gather_seconds = gather_seconds
        self.listed_to: str | None = None  # the last task that was read from the store
        self.bytes_done = 0
        self.is_cancelled = False
        self._changed = Condition()  # its lock is reentrant
        self._ready: deque[ExportTask] = deque()
        self._running: dict[str, ExportTask] = {}
        self._results: list[TaskResult] = []
        self._listed_all = False
        self._open = True
        self._gathering = False  # the job's thread waits for more results

    # -- the pool's side

    def take(self) -> ExportTask | None:
        """Hand out the next task, or None if none is ready or too many are uncounted."""
        with self._changed:
            if not (self._open and self._ready) or len(self._results) >= _MAX_UNCOUNTED:
                return None
            task = self._ready.popleft()
            self._running[task.task_id] = task
            if len(self._ready) == _LOW:
                self._changed.notify()
            return task

    def finish(self, result: TaskResult) -> None:
        """Keep the result of a running task; ignore it if the task does not run."""
        with self._changed:
            if self._running.pop(result.task_id, None) is not None and not self.is_cancelled:
                self._results.append(result)
                self.bytes_done += result.bytes_processed
                if not (self._gathering and self._can_gather):
                    self._changed.notify()

    def give_back(self, task_id: str) -> None:
        """Make a running task ready again, ahead of the others."""
        with self._changed:
            task = self._running.pop(task_id, None)
            if task is not None and not self.is_cancelled:
                self._ready.appendleft(task)
            self._changed.notify()

    # -- the job's side

    @property
    def needs_tasks(self) -> bool:
        """Whether it is time to read the next page of tasks."""
        with self._changed:
            return self._open and not self._listed_all and len(self._ready) <= _LOW

    def add_page(self, page: Sequence[ExportTask]) -> None:
        """Add the tasks that follow `listed_to`; a page that is not full is the last one."""
        with self._changed:
            self._listed_all = len(page) < PAGE_SIZE
            if page:
                self.listed_to = page[-1].task_id
            self._ready.extend(task for task in page if task.task_id not in self._running)

    def restart_listing(self) -> None:
        """List the tasks again from the beginning."""
        with self._changed:
            self._listed_all, self.listed_to = False, None

    def wait_for_results(self, wait_seconds: float) -> Sequence[TaskResult]:
        """Return the results to count next; wait for them unless there is other work to do."""
        with self._changed:
            busy = self.is_cancelled or self.is_exhausted or self.needs_tasks
            if not (self._results or busy):
                self._changed.wait(wait_seconds)
            if self._results and not busy and self._can_gather:
                self._gathering = True
                self._changed.wait(self._gather_seconds)
                self._gathering = False
            return self._results[:_MAX_COUNTED_TOGETHER]

    @property
    def _can_gather(self) -> bool:
        """Whether more results will come that can be counted in the same transactions."""
        expects_more = bool(self._running or self._ready) and not self.is_cancelled
        return expects_more and len(self._results) < _MAX_COUNTED_TOGETHER

    def remove_counted(self, results: Sequence[TaskResult]) -> None:
        """Remove the results that `wait_for_results` returned, because they are stored now."""
        with self._changed:
            del self._results[: len(results)]

    @property
    def is_exhausted(self) -> bool:
        """Whether every task that the store listed is finished and counted."""
        with self._changed:
            return self._listed_all and not (self._ready or self._running or self._results)

    @property
    def is_idle(self) -> bool:
        """Whether no task runs and no result waits to be counted."""
        with self._changed:
            return not (self._running or self._results)

    @property
    def has_running_tasks(self) -> bool:
        """Whether the pool has tasks of this job."""
        with self._changed:
            return bool(self._running)

    def close(self) -> None:
        """Hand out no more tasks; those that run may finish."""
        with self._changed:
            self._open = False

    def cancel(self) -> None:
        """Drop all tasks and results, because the job is not wanted any more."""
        with self._changed:
            self.is_cancelled, self._open = True, False
            self._ready.clear()
            self._results.clear()
            self._changed.notify()

    def wait(self, seconds: float) -> None:
        """Wait until something changes, at most so long."""
        with self._changed:
            if not self.is_cancelled:
                self._changed.wait(seconds)
