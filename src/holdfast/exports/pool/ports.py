"""The ports of the worker pool: the task handler, the source of tasks, and their views."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.exports.model import TaskResult


class TaskHandler(Protocol):
    """The code that does tasks. Each worker process creates one and keeps it.

    It knows no other worker, has no task token and talks only to the pool.
    """

    def process(
        self, task: Mapping[str, Any], report: Callable[[int], None]
    ) -> Mapping[str, Any]:
        """Do one task, given the payload of PROCESS_TASK, and return its result.

        The result is `{"success": bool, "bytesProcessed": int, "error": {"code": str,
        "message": str} | None}`. Several threads call this at once, one for each slot. Call
        `report(n)` when n more bytes were processed. If it raises, the task failed. If it
        raises MemoryError, the process ends and a new one does the task again.
        """

    def cancel(self, job_id: str) -> None:
        """Stop the running tasks of that job soon; they fail with the code wire.CANCELLED.

        The pool calls this every second while such a task runs, because a call may come
        before the task has begun.
        """

    def close(self) -> None:
        """Release resources. No task runs, none will, and the process ends soon after."""


HandlerFactory = Callable[[], TaskHandler]  # it is pickled, so its module must be importable


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task as the source gives it to the pool.

    `payload` is plain data that JSON can represent. The pool adds `jobId`, `taskId`,
    `attempt` and `nonce`.
    """

    job_id: str
    task_id: str
    payload: Mapping[str, Any]


class TaskSource(Protocol):
    """The source of tasks. Each task that was taken is finished or given back, once.

    The pool's thread calls all three methods. They must neither block nor raise; an error
    is logged, and the task or result that it concerns is lost.
    """

    def take(self) -> Assignment | None:
        """Return the next task, or None if there is none now.

        After None, call `WorkerPool.wake` when there are new tasks.
        """

    def finish(self, result: TaskResult) -> None:
        """Accept the final result: the task is done, or failed, or out of attempts."""

    def give_back(self, assignment: Assignment) -> None:
        """Take back a task without a result: the pool stops, or the job was cancelled."""


@dataclass(frozen=True, slots=True)
class RunningTaskInfo:
    """A view of one running task."""

    job_id: str
    task_id: str
    attempt: int
    seconds: float
    bytes_processed: int


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A view of one worker process and its running tasks."""

    pid: int
    tasks: tuple[RunningTaskInfo, ...]
