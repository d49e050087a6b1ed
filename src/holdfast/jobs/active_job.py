"""One job while it runs here: where its thread and the pool's thread meet.

    job's thread    offer ─▶ ready ─┐              ┌─▶ results ─▶ counted
    pool's thread                   └▶ take … finished
                              ready ◀─── returned

Both threads hold it for a moment only; neither waits here for the other to do anything.
"""

from collections import deque
from collections.abc import Sequence
from threading import Condition

from holdfast.jobs.model import ExportTask, TaskResult

PAGE = 1000  # tasks of a job in memory at a time, about
_LOW = PAGE // 4
_TOGETHER = 990  # results counted at a time: ten transactions of DynamoDB
_UNCOUNTED = 5000  # results that may wait for a store that does not answer


class ActiveJob:
    """The tasks of one job between the store and the pool. Safe for both threads."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.listed_to: str | None = None  # the last task that was read from the store
        self.bytes_done = 0
        self._changed = Condition()
        self._ready: deque[ExportTask] = deque()
        self._out: dict[str, ExportTask] = {}
        self._results: list[TaskResult] = []
        self._listed_all = False
        self._open = True
        self._cancelled = False

    # -- the pool's side

    def take(self) -> ExportTask | None:
        with self._changed:
            if not (self._open and self._ready) or len(self._results) >= _UNCOUNTED:
                return None
            task = self._ready.popleft()
            self._out[task.task_id] = task
            if len(self._ready) == _LOW:
                self._changed.notify()
            return task

    def finished(self, result: TaskResult) -> None:
        with self._changed:
            if self._out.pop(result.task_id, None) is not None and not self._cancelled:
                self._results.append(result)
                self.bytes_done += result.bytes_processed
                self._changed.notify()

    def returned(self, task_id: str) -> None:
        with self._changed:
            task = self._out.pop(task_id, None)
            if task is not None and not self._cancelled:
                self._ready.appendleft(task)
            self._changed.notify()

    # -- the job's side

    @property
    def hungry(self) -> bool:
        """Is it time to read the next page of tasks?"""
        with self._changed:
            return self._open and not self._listed_all and len(self._ready) <= _LOW

    def offer(self, page: Sequence[ExportTask]) -> None:
        """The tasks behind `listed_to`; less than a page of them: they are the last."""
        with self._changed:
            self._listed_all = len(page) < PAGE
            if page:
                self.listed_to = page[-1].task_id
            self._ready.extend(task for task in page if task.task_id not in self._out)

    def list_anew(self) -> None:
        with self._changed:
            self._listed_all, self.listed_to = False, None

    def results(self, wait_seconds: float) -> Sequence[TaskResult]:
        """What is to be counted; waits for it, but not when there is something else to do."""
        with self._changed:
            if not (self._results or self._cancelled or self._exhausted or self._starving):
                self._changed.wait(wait_seconds)
            return self._results[:_TOGETHER]

    def counted(self, results: Sequence[TaskResult]) -> None:
        with self._changed:
            del self._results[: len(results)]

    @property
    def exhausted(self) -> bool:
        """Every task that the store listed was done and counted."""
        with self._changed:
            return self._exhausted

    @property
    def at_rest(self) -> bool:
        """Nothing runs, and nothing is left to be counted."""
        with self._changed:
            return not (self._out or self._results)

    @property
    def has_tasks_out(self) -> bool:
        with self._changed:
            return bool(self._out)

    @property
    def cancelled(self) -> bool:
        with self._changed:
            return self._cancelled

    def close(self) -> None:
        """No more tasks are taken; those that run may finish."""
        with self._changed:
            self._open = False

    def cancel(self) -> None:
        """Nothing of this job is wanted any more."""
        with self._changed:
            self._cancelled, self._open = True, False
            self._ready.clear()
            self._results.clear()
            self._changed.notify()

    def rest(self, seconds: float) -> None:
        """Let time pass, or something happen."""
        with self._changed:
            if not self._cancelled:
                self._changed.wait(seconds)

    @property
    def _exhausted(self) -> bool:
        return self._listed_all and not (self._ready or self._out or self._results)

    @property
    def _starving(self) -> bool:
        return self._open and not self._listed_all and len(self._ready) <= _LOW
