"""One worker as the pool sees it, and the ports of the pool: task handler and source of tasks.

The tasks of a worker that is ENDING stay with it until it is GONE, so that no other worker
gets a task that may still be worked on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol

from holdfast.exports.model import TaskResult
from holdfast.exports.pool import wire
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import Clock
from holdfast.process.child_process import ChildProcess, ChildState
from holdfast.process.frames import Program
from holdfast.process.liveness import LivenessLimits

_PROVED_SECONDS = 60.0  # a worker that lived so long did not die of its start

_MAX_FAILED_STARTS = 3  # before the first one succeeds
_START_BACKOFF = Backoff(first_seconds=0.1, factor=2.0, max_seconds=30.0)

_random = Random()


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


@dataclass(eq=False, slots=True)
class TaskAttempt:
    """A task, the number of this attempt at it, and how far it is. Any thread may read it.

    A suspect ran on a worker that ended, and may be the reason. So it gets the next worker
    to itself. Otherwise it could take other tasks down with it again and again.
    """

    assignment: Assignment
    number: int = 1
    suspect: bool = False
    started_at: float = 0.0  # once it runs on a worker
    bytes_processed: int = 0
    cancelled: bool = False
    overdue: bool = False


class WorkerInfo(NamedTuple):
    """A view of one worker process and its running tasks."""

    pid: int
    tasks: list[TaskAttempt]


class PoolWorker(ChildProcess):
    """A worker process and its tasks, for the pool's thread. Any thread may call `to_info`."""

    def __init__(
        self, program: Program, slots: int, limits: LivenessLimits, clock: Clock
    ) -> None:
        super().__init__(program, limits, clock)
        self.running: dict[int, TaskAttempt] = {}
        self.finished_task = False  # so its start is not what ends it now
        self._slots = slots
        self._started_at = clock.monotonic()

    # -- tasks

    @property
    def is_idle(self) -> bool:
        """Whether the worker is ready and runs no task."""
        return self.state is ChildState.READY and not self.running

    @property
    def has_room(self) -> bool:
        """Whether the worker can take a task that is not a suspect."""
        has_free_slot = len(self.running) < self._slots
        if self.state is not ChildState.READY or not has_free_slot:
            return False
        return not any(run.suspect for run in self.running.values())

    def assign(self, attempt: TaskAttempt, nonce: int, now: float) -> None:
        """Buffer the task for the worker; the caller flushes the pipe afterwards.

        Raises TypeError, ValueError, RecursionError or MessageTooLarge if the task cannot be
        packed; then nothing was buffered.
        """
        task = attempt.assignment
        ids = (task.job_id, task.task_id, attempt.number, nonce)
        self.frames.buffer(nonce, wire.pack_task(task.payload, *ids))
        attempt.started_at = now
        self.running[nonce] = attempt

    def cancel(self, job_id: str) -> None:
        """Mark the running tasks of that job as cancelled."""
        for run in self.running.values():
            run.cancelled |= run.assignment.job_id == job_id

    def send_cancels(self) -> None:
        """Send a cancel for each job with cancelled tasks, because an earlier one may have
        come before the task had begun. Skip a worker that does not read its pipe."""
        jobs = {run.assignment.job_id for run in self.running.values() if run.cancelled}
        if self.state is ChildState.READY and not self.frames.unsent_bytes:
            for job_id in jobs:
                self.frames.send(0, wire.pack_cancel(job_id))

    def record_progress(self, bytes_by_nonce: dict[int, int]) -> None:
        """Note how many bytes each running task has processed."""
        for nonce, done in bytes_by_nonce.items():
            if nonce in self.running:
                self.running[nonce].bytes_processed = done

    # -- time

    def extend_timeouts(self, seconds: float) -> None:
        """Ignore a time in which the pool did not run or the machine was suspended."""
        self.extend_timeout(seconds)
        for run in self.running.values():
            run.started_at += seconds

    def end_if_overdue(self, limits: LivenessLimits, now: float) -> None:
        """End the worker if one of its tasks takes too long."""
        if self.state is ChildState.READY:
            for run in self.running.values():
                run.overdue = limits.is_overdue(run.started_at, now)
            if any(run.overdue for run in self.running.values()):
                self.terminate(f"a task took longer than {limits.timeout_seconds:g} s")

    def has_proved_itself(self, now: float) -> bool:
        """Return whether the worker finished a task or lived long enough."""
        return self.finished_task or now - self._started_at >= _PROVED_SECONDS

    def describe_end(self) -> str:
        """Return why the worker ended."""
        return self.reason or self.poll_exit() or "cannot be killed"

    # -- for other threads

    def to_info(self) -> WorkerInfo:
        """Return a view of the worker and its tasks."""
        # `list` of a dict's values is one step, so the pool's thread cannot interrupt it.
        return WorkerInfo(self.pid, list(self.running.values()))


@dataclass(slots=True)
class WorkerSlot:
    """A place for one worker after the other, with the time when the next may start."""

    worker: PoolWorker | None = None
    not_before: float = 0.0  # when the next worker may start
    was_ready: bool = False  # whether the slot ever had a worker that was ready
    _failures: int = 0  # consecutive workers that died before finishing a task

    @property
    def has_failed(self) -> bool:
        """Whether the first workers of the slot all died before they were ready."""
        return not self.was_ready and self._failures >= _MAX_FAILED_STARTS

    def vacate(self, now: float) -> None:
        """Remove a worker that is gone, and set when the next may start."""
        assert self.worker is not None
        if self.worker.has_proved_itself(now):
            self._failures = 0
        self.worker = None
        self.delay_next(now)

    def delay_next(self, now: float) -> None:
        """Count a failure and delay the next start; it grows with each failure."""
        pause = _START_BACKOFF.delay(self._failures, _random) if self._failures else 0.0
        self._failures += 1
        self.not_before = now + pause
