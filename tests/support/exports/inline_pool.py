"""A pool that does tasks at once, in the thread that wakes it."""

from collections.abc import Callable

from holdfast.exports.dispatcher import TaskDispatcher
from holdfast.exports.model import JobError, TaskResult
from holdfast.exports.pool.worker import Assignment

Do = Callable[[Assignment], TaskResult | None]


def succeed(task: Assignment) -> TaskResult:
    """Return a success."""
    return TaskResult(task.job_id, task.task_id, True, 10)


def fail(task: Assignment) -> TaskResult:
    """Return a failure."""
    return TaskResult(task.job_id, task.task_id, False, 0, JobError("Http404", "gone"))


class InlinePool:
    """Calls `do` for each task; it returns a result, or None for a task that never ends."""

    def __init__(self, dispatcher: TaskDispatcher, do: Do = succeed) -> None:
        self._dispatcher, self.do = dispatcher, do
        self.taken: list[Assignment] = []
        self.running: list[Assignment] = []
        self.cancelled: list[str] = []
        self.bytes = 0
        dispatcher.attach_pool(self)

    def wake(self) -> None:
        """Do all tasks that are ready."""
        while (task := self._dispatcher.take()) is not None:
            self.taken.append(task)
            result = self.do(task)
            if result is None:
                self.running.append(task)
            else:
                self._dispatcher.finish(result)

    def cancel(self, job_id: str) -> None:
        """Note that the job was cancelled."""
        self.cancelled.append(job_id)

    def count_running_bytes(self, job_id: str) -> int:
        """Return the number that the test has set."""
        return self.bytes
