"""What an engine is doing, read now and then: for those who watch."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Event
from holdfast.jobs.errors import JobNotFound, StoreUnavailable
from holdfast.jobs.events import JobFinished, TaskCompleted
from holdfast.jobs.model import JobState
from holdfast.jobs.ports import JobStateRepository

if TYPE_CHECKING:
    from holdfast.jobs.engine import JobEngine
    from holdfast.jobs.pool.pool import RunningTaskInfo

_READ_SECONDS = 1.0  # how often the store is asked
_MOST_JOBS = 8  # shown, and asked for
_PACE_SECONDS = 30.0  # what the pace is taken from
_NAMES = 256  # remembered


@dataclass(frozen=True, slots=True)
class JobLine:
    """How far one job is; `bytes` arrived since this process began."""

    job_id: str
    state: JobState
    bytes: int
    bytes_per_second: float
    left_seconds: float | None


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker; `name` is of the task it is longest at, `task` None: it waits."""

    pid: int
    task: "RunningTaskInfo | None"
    name: str
    others: int


class Watch:
    """Subscribe it to the engine's events. Read by one thread, told by many."""

    def __init__(
        self,
        jobs: JobStateRepository,
        engine: "JobEngine",
        watched: Callable[[], Sequence[str]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`watched` names the jobs to be shown."""
        self._jobs, self._engine, self._watched, self._clock = jobs, engine, watched, clock
        self._lock = Lock()
        self._bytes: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()  # jobs, by how they ended
        self._states: dict[str, JobState] = {}
        self._paces: dict[str, _Pace] = {}
        self._names: OrderedDict[str, str] = OrderedDict()
        self._read_at = float("-inf")

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, TaskCompleted):
                self._bytes[event.job_id] += event.bytes_processed
            elif isinstance(event, JobFinished):
                self.finished[event.status] += 1

    @property
    def running(self) -> int:
        return sum(len(worker.tasks) for worker in self._engine.pool.view())

    # -- jobs

    def jobs(self) -> list[JobLine]:
        """Those that run, the first few of them."""
        now = self._clock.monotonic()
        if now - self._read_at >= _READ_SECONDS:
            self._read_at = now
            self._read(now)
        return [self._line(job_id, state, now) for job_id, state in self._states.items()]

    def _read(self, now: float) -> None:
        found: dict[str, JobState] = {}
        for job_id in sorted(self._watched())[:_MOST_JOBS]:
            try:
                job = self._jobs.find_by_id(job_id)
            except StoreUnavailable:  # what was known before is shown a little longer
                known = self._states.get(job_id)
            else:
                known = None if job is None else job.state
            if known is not None:
                found[job_id] = known
        self._states = found
        self._paces = {job_id: self._paces.get(job_id) or _Pace() for job_id in found}

    def _line(self, job_id: str, state: JobState, now: float) -> JobLine:
        with self._lock:
            arrived = self._bytes[job_id]
        arrived += self._engine.pool.bytes_of(job_id)
        pace = self._paces[job_id]
        pace.note(now, state.processed_tasks, arrived)
        left = state.total_tasks - state.processed_tasks
        seconds = left / pace.tasks_per_second if pace.tasks_per_second and left else None
        return JobLine(job_id, state, arrived, pace.bytes_per_second, seconds)

    # -- workers

    def workers(self) -> list[WorkerLine]:
        lines = []
        for worker in self._engine.pool.view():
            longest = max(worker.tasks, key=lambda task: task.seconds, default=None)
            name = "" if longest is None else self._name(longest)
            lines.append(WorkerLine(worker.pid, longest, name, max(0, len(worker.tasks) - 1)))
        return lines

    def _name(self, task: "RunningTaskInfo") -> str:
        if (known := self._names.get(task.task_id)) is None:
            known = self._names[task.task_id] = self._looked_up(task)
            if len(self._names) > _NAMES:
                self._names.popitem(last=False)
        return known

    def _looked_up(self, task: "RunningTaskInfo") -> str:
        # The store lists tasks by id, behind one that is given: behind the last id before
        # this one, this one is the first.
        before = f"{int(task.task_id, 16) - 1:032x}"
        try:
            found = self._jobs.tasks(task.job_id, after=before, limit=1)
        except (StoreUnavailable, JobNotFound):
            return ""
        return found[0].key if found and found[0].task_id == task.task_id else ""


class _Pace:
    """How fast a job went lately."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, int, int]] = deque()

    def note(self, now: float, tasks: int, arrived: int) -> None:
        self._noted.append((now, tasks, arrived))
        while now - self._noted[0][0] > _PACE_SECONDS:
            self._noted.popleft()

    @property
    def tasks_per_second(self) -> float:
        return self._per_second(1)

    @property
    def bytes_per_second(self) -> float:
        return self._per_second(2)

    def _per_second(self, column: int) -> float:
        first, last = self._noted[0], self._noted[-1]
        seconds = last[0] - first[0]
        return max(0.0, (last[column] - first[column]) / seconds) if seconds > 0 else 0.0
