"""The dispatcher: takes the tasks of the jobs that run here to the pool, and counts.

Each job has a thread of its own, the one that holds the job's message. It alone reads and
writes that job's rows here, so results of one job never compete with each other and are
counted together, as many as came in meanwhile.

What is not counted when this process dies is still PENDING in the store, so it is done
again by whoever gets the job's message next. What is counted is not.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any, Protocol

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import HoldfastError
from holdfast.jobs.active_job import PAGE, ActiveJob
from holdfast.jobs.errors import StoreUnavailable
from holdfast.jobs.model import CallbackState, ExportJob, ExportTask, TaskResult, TaskStatus
from holdfast.jobs.pool.pool import Assignment
from holdfast.jobs.ports import JobStateRepository
from holdfast.jobs.tracker import JobTracker

Payload = Callable[[ExportTask], Mapping[str, Any]]

_LOOK_SECONDS = 0.25


class TaskPool(Protocol):
    """What the dispatcher needs of the worker pool."""

    def wake(self) -> None: ...

    def cancel(self, job_id: str) -> None: ...

    def bytes_of(self, job_id: str) -> int:
        """How far the tasks of that job that run now have come, in bytes."""


class TaskDispatcher:
    """The pool's source of tasks: those of all running jobs, in turn."""

    def __init__(
        self,
        jobs: JobStateRepository,
        tracker: JobTracker,
        payload: Payload,
        *,
        drain_seconds: float = 30.0,
        progress_seconds: float = 30.0,
        pause_seconds: float = 1.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`payload` makes what a worker is told of a task. At most every
        `progress_seconds` the store hears of a job that moves and finishes nothing. A
        store that did not answer is asked again after `pause_seconds`."""
        self._jobs = jobs
        self._tracker = tracker
        self._payload = payload
        self._drain_seconds = drain_seconds
        self._progress_seconds = progress_seconds
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._lock = Lock()
        self._runs: deque[ActiveJob] = deque()
        self._pool: TaskPool = _NoPool()

    def feed(self, pool: TaskPool) -> None:
        """Whom to tell of new tasks and of tasks that are not wanted any more."""
        self._pool = pool

    # -- the pool's side: none of these waits for the store

    def take(self) -> Assignment | None:
        with self._lock:
            for _ in range(len(self._runs)):
                run = self._runs[0]
                self._runs.rotate(-1)  # the next job's turn, whatever this one has
                if (task := run.take()) is not None:
                    return Assignment(task.job_id, task.task_id, self._payload(task))
        return None

    def finished(self, result: TaskResult) -> None:
        if (run := self._run_of(result.job_id)) is not None:
            run.finished(result)

    def returned(self, assignment: Assignment) -> None:
        if (run := self._run_of(assignment.job_id)) is not None:
            run.returned(assignment.task_id)

    # -- the jobs' side

    @property
    def running(self) -> list[str]:
        with self._lock:
            return [run.job_id for run in self._runs]

    def cancel(self, job_id: str) -> None:
        """Nobody waits for that job any more: its run ends, and what is out with it."""
        if (run := self._run_of(job_id)) is not None:
            run.cancel()

    def run(
        self,
        job: ExportJob,
        *,
        lost: Event,
        leave: Callable[[], bool] = lambda: False,
        moved: Callable[[ExportJob], None] = lambda job: None,
    ) -> ExportJob:
        """Work on a sealed job until its outcome is decided; the job as it is then.

        Ends early, with the job undecided: at once when `lost` is set or the job is
        cancelled, and when `leave()` says so, after what runs had `drain_seconds` to
        finish. `moved` is called whenever results were counted.
        """
        with self._entered(job.job_id) as run:
            moving = _Moving(run, self._pool, self._progress_seconds, self._clock)
            leave_at: float | None = None
            while not (decided(job) or run.cancelled or lost.is_set()):
                if leave_at is None and leave():
                    run.close()
                    leave_at = self._clock.monotonic() + self._drain_seconds
                if leave_at is not None and self._may_leave(run, leave_at):
                    break
                try:
                    before, job = job, self._step(run, job)
                    if job is not before:
                        moved(job)
                        moving.start()
                    elif moving.due():
                        self._jobs.note_progress(run.job_id)
                except StoreUnavailable:  # what was not counted stays where it is
                    run.rest(self._pause_seconds)
            cancelled = run.cancelled
        return self._jobs.find_by_id(job.job_id) or job if cancelled else job

    def _step(self, run: ActiveJob, job: ExportJob) -> ExportJob:
        if run.hungry:
            run.offer(self._next_page(run))
            self._pool.wake()
        if results := run.results(_LOOK_SECONDS):
            job = self._tracker.count(run.job_id, results)
            run.counted(results)
            self._pool.wake()
        elif run.exhausted:
            job = self._tracker.complete(run.job_id)
            if not decided(job):
                # Some task is not counted and not listed: look for it, not in a hurry.
                run.rest(self._pause_seconds)
                run.list_anew()
        return job

    def _next_page(self, run: ActiveJob) -> list[ExportTask]:
        return self._jobs.tasks(
            run.job_id, status=TaskStatus.PENDING, after=run.listed_to, limit=PAGE
        )

    def _may_leave(self, run: ActiveJob, leave_at: float) -> bool:
        return run.at_rest or self._clock.monotonic() >= leave_at

    @contextmanager
    def _entered(self, job_id: str) -> Iterator[ActiveJob]:
        run = ActiveJob(job_id)
        with self._lock:
            if any(other.job_id == job_id for other in self._runs):
                raise HoldfastError(f"job {job_id!r} runs here already")
            self._runs.append(run)
        try:
            yield run
        finally:
            with self._lock:
                self._runs.remove(run)
            if run.has_tasks_out:
                self._pool.cancel(job_id)

    def _run_of(self, job_id: str) -> ActiveJob | None:
        with self._lock:
            return next((run for run in self._runs if run.job_id == job_id), None)


class _Moving:
    """Does a job move while none of its tasks is finished? A large file takes its time."""

    def __init__(self, run: ActiveJob, pool: TaskPool, seconds: float, clock: Clock) -> None:
        self._run, self._pool, self._clock = run, pool, clock
        self._seconds = seconds
        self.start()

    def start(self) -> None:
        self._bytes = self._run.bytes_done + self._pool.bytes_of(self._run.job_id)
        self._look_at = self._clock.monotonic() + self._seconds

    def due(self) -> bool:
        if self._clock.monotonic() < self._look_at:
            return False
        before = self._bytes
        self.start()
        return self._bytes != before


class _NoPool:
    def wake(self) -> None: ...

    def cancel(self, job_id: str) -> None: ...

    def bytes_of(self, job_id: str) -> int:
        return 0


def decided(job: ExportJob) -> bool:
    """Is it settled how the job ends, if not yet told?"""
    return job.terminal or job.callback.state is not CallbackState.NONE
