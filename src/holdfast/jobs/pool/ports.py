"""What a worker pool is given, and what it shows: work, tasks and a view of both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.jobs.model import TaskResult


class TaskHandler(Protocol):
    """What is done with a task. Made once in each worker process, and lives there.

    It knows of no other worker, has no task token and nobody to answer but the pool.
    """

    def process(
        self, task: Mapping[str, Any], report: Callable[[int], None]
    ) -> Mapping[str, Any]:
        """Do one task: the payload of PROCESS_TASK in, `{"success": bool, "bytesProcessed":
        int, "error": {"code": str, "message": str} | None}` out.

        Called from several threads at once, one for each slot. `report(n)`: n bytes more
        were done. An exception is a failed task; a MemoryError ends the process, and the
        task is done again in a fresh one.
        """

    def cancel(self, job_id: str) -> None:
        """Stop what runs for that job soon; its `process` fails with the code wire.CANCELLED.

        Called every second while such a task runs: it may be called before the task came
        so far that there is something to stop.
        """

    def close(self) -> None:
        """No task runs and none will. Soon after, the process ends."""


WorkFactory = Callable[[], TaskHandler]  # it is pickled: of an importable module


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task as the pool is given it. `payload` is plain data, as JSON has it; the pool
    adds `jobId`, `taskId`, `attempt` and `nonce`."""

    job_id: str
    task_id: str
    payload: Mapping[str, Any]


class TaskSource(Protocol):
    """Where tasks come from and go to: each taken one is finished or returned, once.

    All three are called in the pool's thread. They must not block, and must not raise:
    an error is logged, and what it was about is lost.
    """

    def take(self) -> Assignment | None:
        """The next task; None: there is none now. Then `WorkerPool.wake` tells of new ones."""

    def finished(self, result: TaskResult) -> None:
        """For good: done, failed by the work, or out of attempts."""

    def returned(self, assignment: Assignment) -> None:
        """Not done and not failed: the pool stopped, or the job was cancelled."""


@dataclass(frozen=True, slots=True)
class RunningTaskInfo:
    """One running task."""

    job_id: str
    task_id: str
    attempt: int
    seconds: float
    bytes_processed: int


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker process and what it is doing."""

    pid: int
    tasks: tuple[RunningTaskInfo, ...]
