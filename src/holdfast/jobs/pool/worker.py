"""One worker as the pool sees it: its state, what is aboard, and whether it is well.

    STARTING ──▶ READY ──▶ LEAVING     told to end, nothing aboard
        └──────────┴──────────┴──────▶ ENDING ──▶ gone

What is aboard a worker that is ENDING stays there until it is gone for certain: nobody is
given a task that may still be worked on.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from holdfast.jobs.pool import wire
from holdfast.jobs.pool.ports import Assignment, RunningTaskInfo, WorkerInfo
from holdfast.jobs.pool.process import WorkerProcess

_START_SECONDS = 120.0  # imports on a busy machine
_LONG_SECONDS = 60.0  # who lived that long did not die of its start
_CLOSE_SECONDS = 2.0  # for Work.close
_GROUP_SECONDS = 1.0  # where nobody buries orphans, a group never empties
_DEATH_SECONDS = 10.0  # after SIGKILL; only the kernel itself can take longer


class WorkerState(Enum):
    STARTING = auto()
    READY = auto()
    LEAVING = auto()
    ENDING = auto()


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How long a worker may take."""

    task_seconds: float
    answer_seconds: float

    @property
    def pulse_seconds(self) -> float:
        return min(1.0, self.answer_seconds / 4)


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """A task and the number of this attempt at it.

    A suspect was aboard a worker that ended. Perhaps it was the reason: it has the next
    worker to itself, or it would take its neighbours down with it again and again.
    """

    assignment: Assignment
    number: int = 1
    suspect: bool = False


@dataclass(slots=True)
class RunningTask:
    """An attempt aboard a worker."""

    attempt: TaskAttempt
    started_at: float
    bytes_processed: int = 0
    cancelled: bool = False
    overdue: bool = False

    def view(self, now: float) -> RunningTaskInfo:
        task, number = self.attempt.assignment, self.attempt.number
        seconds = max(0.0, now - self.started_at)
        return RunningTaskInfo(task.job_id, task.task_id, number, seconds, self.bytes_processed)


@dataclass(slots=True)
class PoolWorker:
    """A worker process with its tasks, for the pool's thread; `view` is for any."""

    process: WorkerProcess
    slots: int
    since: float  # when it came into its state
    heard_at: float
    born_at: float
    state: WorkerState = WorkerState.STARTING
    aboard: dict[int, RunningTask] = field(default_factory=dict)
    begun: bool = False  # it was ready once
    proved: bool = False  # it did a task: what ends it now is not how it was started
    garbled: bool = False  # nothing it says can be believed any more
    _reason: str | None = None

    # -- tasks

    @property
    def empty(self) -> bool:
        return self.state is WorkerState.READY and not self.aboard

    @property
    def has_room(self) -> bool:
        """For a task that is no suspect."""
        alone = any(run.attempt.suspect for run in self.aboard.values())
        return self.state is WorkerState.READY and len(self.aboard) < self.slots and not alone

    def give(self, attempt: TaskAttempt, nonce: int, now: float) -> None:
        """Raises TypeError, ValueError or RecursionError; nothing was given then."""
        task = attempt.assignment
        ids = (task.job_id, task.task_id, attempt.number, nonce)
        frame = wire.pack_task(task.payload, *ids)
        self.aboard[nonce] = RunningTask(attempt, now)
        self.process.send(frame)

    def cancel(self, job_id: str) -> None:
        for run in self.aboard.values():
            run.cancelled |= run.attempt.assignment.job_id == job_id

    def ask_again_to_cancel(self) -> None:
        """It may have been told before the task had begun. Not one that does not read."""
        jobs = {run.attempt.assignment.job_id for run in self.aboard.values() if run.cancelled}
        if self.state is WorkerState.READY and not self.process.unsent:
            for job_id in jobs:
                self.process.send(wire.pack_cancel(job_id))

    # -- signs of life

    def ready(self, now: float) -> None:
        if self.state is WorkerState.STARTING:
            self.begun = True
            self._become(WorkerState.READY, now)

    def pulsed(self, pulse: wire.WorkerPulse) -> None:
        for nonce, done in pulse.bytes_by_nonce.items():
            if nonce in self.aboard:
                self.aboard[nonce].bytes_processed = done

    def forgive(self, seconds: float) -> None:
        """Time in which we did not look, or the machine slept, is not held against it."""
        self.since += seconds
        self.heard_at += seconds
        for run in list(self.aboard.values()):
            run.started_at += seconds

    def wrong(self, limits: PoolLimits, now: float) -> str | None:
        """The reason to end it, or None while all is well."""
        if (death := self.process.death()) is not None:
            return death
        match self.state:
            case WorkerState.STARTING if now - self.since >= _START_SECONDS:
                return f"not ready after {_START_SECONDS:g} s"
            case WorkerState.LEAVING if now - self.since >= _CLOSE_SECONDS:
                return f"did not end within {_CLOSE_SECONDS:g} s"
            case WorkerState.READY:
                return self._silent(limits, now) or self._late(limits, now)
        return None

    def _silent(self, limits: PoolLimits, now: float) -> str | None:
        if now - self.heard_at < limits.answer_seconds:
            return None
        return f"no sign of life for {limits.answer_seconds:g} s"

    def _late(self, limits: PoolLimits, now: float) -> str | None:
        for run in self.aboard.values():
            run.overdue = now - run.started_at >= limits.task_seconds
        if not any(run.overdue for run in self.aboard.values()):
            return None
        return f"a task took longer than {limits.task_seconds:g} s"

    # -- its end

    def leave(self, now: float) -> None:
        """Nothing more is for it: let it close what it has."""
        self.process.hang_up()
        self._become(WorkerState.LEAVING, now)

    def end(self, reason: str | None, now: float) -> None:
        """`reason` is None where its own death will tell."""
        if self.state is not WorkerState.ENDING:
            self._reason = reason
            self.process.kill()
            self._become(WorkerState.ENDING, now)

    def gone(self, now: float) -> bool:
        """Whether nothing of it can do anything any more. Ask while it is ENDING."""
        if self.process.death() is None:
            return now - self.since >= _DEATH_SECONDS  # hangs in the kernel, never returns
        return self.process.gone() or now - self.since >= _GROUP_SECONDS

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self._reason or self.process.death() or "cannot be killed"

    def was_of_use(self, now: float) -> bool:
        return self.proved or now - self.born_at >= _LONG_SECONDS

    def _become(self, state: WorkerState, now: float) -> None:
        self.state = state
        self.since = self.heard_at = now

    # -- for people

    def view(self, now: float) -> WorkerInfo:
        # `list` of a dict's values is one step: the pool's thread cannot get in between.
        runs = list(self.aboard.values())
        return WorkerInfo(self.process.pid, tuple(run.view(now) for run in runs))
