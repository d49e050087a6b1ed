"""Read what an engine is doing, for live views."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from holdfast.cli.live_view import Rate
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Event
from holdfast.jobs.errors import JobNotFound, StoreUnavailable
from holdfast.jobs.events import JobFinished, TaskCompleted
from holdfast.jobs.model import JobState
from holdfast.jobs.ports import JobStateRepository

if TYPE_CHECKING:
    from holdfast.jobs.engine import JobEngine
    from holdfast.jobs.pool.ports import RunningTaskInfo

_READ_SECONDS = 1.0  # between two reads of the store
_MAX_JOBS = 8  # that are read and shown
_RATE_SECONDS = 30.0  # that the rate is computed from
_MAX_NAMES = 256  # that are cached


@dataclass(frozen=True, slots=True)
class JobLine:
    """The progress of one job. `bytes` counts from the start of this process."""

    job_id: str
    state: JobState
    bytes: int
    bytes_per_second: float
    left_seconds: float | None


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker, with its oldest running task and that task's name, or None if idle."""

    pid: int
    task: "RunningTaskInfo | None"
    name: str
    others: int


class ExportMonitor:
    """The progress of an engine's jobs and workers.

    Subscribe it to the engine's events. One thread may read it while others emit events.
    """

    def __init__(
        self,
        jobs: JobStateRepository,
        engine: "JobEngine",
        list_jobs: Callable[[], Sequence[str]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`list_jobs` returns the ids of the jobs to show."""
        self._jobs, self._engine, self._list_jobs, self._clock = jobs, engine, list_jobs, clock
        self._lock = Lock()
        self._bytes: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()  # jobs, by how they ended
        self._states: dict[str, JobState] = {}
        self._rates: dict[str, Rate] = {}
        self._names: OrderedDict[str, str] = OrderedDict()
        self._read_at = float("-inf")

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, TaskCompleted):
                self._bytes[event.job_id] += event.bytes_processed
            elif isinstance(event, JobFinished):
                self.finished[event.status] += 1

    def count_running(self) -> int:
        """Return the number of running tasks."""
        return sum(len(worker.tasks) for worker in self._engine.pool.list_workers())

    # -- jobs

    def jobs(self) -> list[JobLine]:
        """Return the progress of the first few running jobs."""
        now = self._clock.monotonic()
        if now - self._read_at >= _READ_SECONDS:
            self._read_at = now
            self._read_states(now)
        return [self._make_line(job_id, state, now) for job_id, state in self._states.items()]

    def _read_states(self, now: float) -> None:
        states: dict[str, JobState] = {}
        for job_id in sorted(self._list_jobs())[:_MAX_JOBS]:
            try:
                job = self._jobs.find_by_id(job_id)
            except StoreUnavailable:  # keep showing the last known state
                known = self._states.get(job_id)
            else:
                known = None if job is None else job.state
            if known is not None:
                states[job_id] = known
        self._states = states
        self._rates = {
            job_id: self._rates.get(job_id) or Rate(_RATE_SECONDS) for job_id in states
        }

    def _make_line(self, job_id: str, state: JobState, now: float) -> JobLine:
        with self._lock:
            arrived = self._bytes[job_id]
        arrived += self._engine.pool.count_running_bytes(job_id)
        rate = self._rates[job_id]
        rate.record(now, state.processed_tasks, arrived)
        left = state.total_tasks - state.processed_tasks
        per_second = rate.per_second()
        seconds = left / per_second if per_second and left else None
        return JobLine(job_id, state, arrived, rate.per_second(1), seconds)

    # -- workers

    def workers(self) -> list[WorkerLine]:
        """Return the state of every worker."""
        lines = []
        for worker in self._engine.pool.list_workers():
            oldest = max(worker.tasks, key=lambda task: task.seconds, default=None)
            name = "" if oldest is None else self._find_name(oldest)
            lines.append(WorkerLine(worker.pid, oldest, name, max(0, len(worker.tasks) - 1)))
        return lines

    def _find_name(self, task: "RunningTaskInfo") -> str:
        if (known := self._names.get(task.task_id)) is None:
            known = self._names[task.task_id] = self._look_up_name(task)
            if len(self._names) > _MAX_NAMES:
                self._names.popitem(last=False)
        return known

    def _look_up_name(self, task: "RunningTaskInfo") -> str:
        # The store lists tasks in the order of their ids, after a given one. So after the
        # id just before this task's, this task is the first.
        before = f"{int(task.task_id, 16) - 1:032x}"
        try:
            tasks = self._jobs.tasks(task.job_id, after=before, limit=1)
        except (StoreUnavailable, JobNotFound):
            return ""
        return tasks[0].key if tasks and tasks[0].task_id == task.task_id else ""
