"""One worker as the pool sees it, and the ports of the pool: task handler and source of tasks.

    STARTING ──▶ READY ──▶ LEAVING     asked to end, nothing runs
        └──────────┴──────────┴──────▶ ENDING ──▶ gone

The tasks of a worker that is ENDING stay with it until it is certainly gone, so that no
other worker gets a task that may still be worked on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from holdfast.exports.model import TaskResult
from holdfast.exports.pool import wire
from holdfast.process.child_process import ChildProcess
from holdfast.process.liveness import START_TIMEOUT_SECONDS, LivenessLimits

_PROVED_SECONDS = 60.0  # a worker that lived so long did not die of its start
_CLOSE_TIMEOUT_SECONDS = 2.0  # for TaskHandler.close

_MAX_FAILED_STARTS = 3  # before the first one succeeds
_FIRST_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 30.0


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


class WorkerState(Enum):
    """The phase of a worker's life."""

    STARTING = auto()
    READY = auto()
    LEAVING = auto()
    ENDING = auto()


@dataclass(eq=False, slots=True)
class TaskAttempt:
    """A task, the number of this attempt at it, and how far it is.

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

    def to_info(self, now: float) -> RunningTaskInfo:
        """Return a view of the task."""
        ids = (self.assignment.job_id, self.assignment.task_id, self.number)
        seconds = max(0.0, now - self.started_at)
        return RunningTaskInfo(*ids, seconds, self.bytes_processed)


@dataclass(slots=True)
class PoolWorker:
    """A worker process and its tasks, for the pool's thread. Any thread may call `to_info`."""

    process: ChildProcess
    slots: int
    state_since: float
    heard_at: float
    started_at: float
    state: WorkerState = WorkerState.STARTING
    running: dict[int, TaskAttempt] = field(default_factory=dict)
    was_ready: bool = False
    finished_task: bool = False  # so its start is not what ends it now
    unreadable: bool = False  # it sent an invalid message, so no later one can be trusted
    _reason: str | None = None

    # -- tasks

    @property
    def is_idle(self) -> bool:
        """Whether the worker is ready and runs no task."""
        return self.state is WorkerState.READY and not self.running

    @property
    def has_room(self) -> bool:
        """Whether the worker can take a task that is not a suspect."""
        has_free_slot = len(self.running) < self.slots
        if self.state is not WorkerState.READY or not has_free_slot:
            return False
        return not any(run.suspect for run in self.running.values())

    def assign(self, attempt: TaskAttempt, nonce: int, now: float) -> None:
        """Buffer the task for the worker; the caller flushes the process afterwards.

        Raises TypeError, ValueError, RecursionError or MessageTooLarge if the task cannot be
        packed; then nothing was buffered.
        """
        task = attempt.assignment
        ids = (task.job_id, task.task_id, attempt.number, nonce)
        self.process.buffer(nonce, wire.pack_task(task.payload, *ids))
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
        if self.state is WorkerState.READY and not self.process.unsent_bytes:
            for job_id in jobs:
                self.process.send(0, wire.pack_cancel(job_id))

    # -- signs of life

    def mark_ready(self, now: float) -> None:
        """Note that the worker has started."""
        if self.state is WorkerState.STARTING:
            self.was_ready = True
            self._move_to(WorkerState.READY, now)

    def record_progress(self, bytes_by_nonce: dict[int, int]) -> None:
        """Note how many bytes each running task has processed."""
        for nonce, done in bytes_by_nonce.items():
            if nonce in self.running:
                self.running[nonce].bytes_processed = done

    def extend_timeouts(self, seconds: float) -> None:
        """Ignore a time in which the pool did not run or the machine was suspended."""
        self.state_since += seconds
        self.heard_at += seconds
        for run in list(self.running.values()):
            run.started_at += seconds

    def find_problem(self, limits: LivenessLimits, now: float) -> str | None:
        """Return the reason to end the worker, or None while it is healthy."""
        if (exit_reason := self.process.poll_exit()) is not None:
            return exit_reason
        in_state_seconds = now - self.state_since
        match self.state:
            case WorkerState.STARTING if in_state_seconds >= START_TIMEOUT_SECONDS:
                return f"not ready after {START_TIMEOUT_SECONDS:g} s"
            case WorkerState.LEAVING if in_state_seconds >= _CLOSE_TIMEOUT_SECONDS:
                return f"did not end within {_CLOSE_TIMEOUT_SECONDS:g} s"
            case WorkerState.READY if limits.is_silent(self.heard_at, now):
                return f"no sign of life for {limits.pulse_seconds:g} s"
            case WorkerState.READY if self._has_overdue_task(limits, now):
                return f"a task took longer than {limits.timeout_seconds:g} s"
        return None

    def _has_overdue_task(self, limits: LivenessLimits, now: float) -> bool:
        for run in self.running.values():
            run.overdue = limits.is_overdue(run.started_at, now)
        return any(run.overdue for run in self.running.values())

    # -- the end

    def leave(self, now: float) -> None:
        """Let the worker close its handler and end, because it gets no more tasks."""
        self.process.close_commands()
        self._move_to(WorkerState.LEAVING, now)

    def end(self, reason: str | None, now: float) -> None:
        """Kill the worker. If `reason` is None, its exit code gives the reason."""
        if self.state is not WorkerState.ENDING:
            self._reason = reason
            self.process.kill()
            self._move_to(WorkerState.ENDING, now)

    @property
    def reason(self) -> str:
        """Why the worker ended."""
        return self._reason or self.process.poll_exit() or "cannot be killed"

    def has_proved_itself(self, now: float) -> bool:
        """Return whether the worker finished a task or lived long enough."""
        return self.finished_task or now - self.started_at >= _PROVED_SECONDS

    def _move_to(self, state: WorkerState, now: float) -> None:
        self.state = state
        self.state_since = self.heard_at = now

    # -- for other threads

    def to_info(self, now: float) -> WorkerInfo:
        """Return a view of the worker and its tasks."""
        # `list` of a dict's values is one step, so the pool's thread cannot interrupt it.
        runs = list(self.running.values())
        return WorkerInfo(self.process.pid, tuple(run.to_info(now) for run in runs))


@dataclass(slots=True)
class WorkerSlot:
    """A place for one worker after the other, with the time when the next may start."""

    worker: PoolWorker | None = None
    not_before: float = 0.0  # when the next worker may start
    _was_ready: bool = False
    _failures: int = 0  # consecutive workers that died before finishing a task

    @property
    def was_ready(self) -> bool:
        """Whether the slot ever had a worker that was ready."""
        return self._was_ready or (self.worker is not None and self.worker.was_ready)

    @property
    def has_failed(self) -> bool:
        """Whether the first workers of the slot all died before they were ready."""
        return not self.was_ready and self._failures >= _MAX_FAILED_STARTS

    def vacate(self, now: float) -> None:
        """Remove a worker that is gone, and set when the next may start."""
        assert self.worker is not None
        self._was_ready = self.was_ready
        if self.worker.has_proved_itself(now):
            self._failures = 0
        self.worker = None
        self.delay_next(now)

    def delay_next(self, now: float) -> None:
        """Count a failure and delay the next start; the delay doubles with each failure."""
        doublings = min(self._failures - 1, 20)
        pause = _FIRST_PAUSE_SECONDS * 2**doublings if self._failures else 0.0
        self._failures += 1
        self.not_before = now + min(pause, _MAX_PAUSE_SECONDS)
