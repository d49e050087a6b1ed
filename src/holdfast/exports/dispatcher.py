"""The dispatcher gives the tasks of the running jobs to the pool and counts their results.

Each job has a thread of its own, which is the thread that holds the job's message. In this
process only that thread reads and writes the job's rows. So results of one job never
compete with each other, and all results that came in meanwhile are counted together.

Tasks that are not counted when this process dies are still PENDING in the store, so the
next process that gets the job's message does them again. It skips those that are counted.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any, Protocol

from holdfast.errors import HoldfastError
from holdfast.exports.active_job import PAGE_SIZE, ActiveJob
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.model import ExportJob, ExportTask, TaskResult, TaskStatus
from holdfast.exports.pool.ports import Assignment
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.tracker import JobTracker
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

Payload = Callable[[ExportTask], Mapping[str, Any]]

_RESULT_WAIT_SECONDS = 0.25


class TaskPool(Protocol):
    """The part of the worker pool that the dispatcher uses."""

    def wake(self) -> None:
        """Take tasks again, because there may be new ones."""

    def cancel(self, job_id: str) -> None:
        """Stop the running tasks of that job."""

    def count_running_bytes(self, job_id: str) -> int:
        """Return how many bytes the running tasks of that job have processed."""


class TaskDispatcher:
    """The pool's source of tasks. It takes from the running jobs in turn."""

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
        """Create a dispatcher; `payload` makes the data that a worker gets for a task.

        A job that processes bytes but finishes no task notes its progress in the store at
        most every `progress_seconds`. If the store does not respond, the dispatcher tries
        again after `pause_seconds`.
        """
        self._jobs = jobs
        self._tracker = tracker
        self._payload = payload
        self._drain_seconds = drain_seconds
        self._progress_seconds = progress_seconds
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._lock = Lock()
        self._active: deque[ActiveJob] = deque()
        self._pool: TaskPool = _NoPool()
        self._leave_now = Event()

    def attach_pool(self, pool: TaskPool) -> None:
        """Set the pool to notify of new tasks and of tasks that are not wanted any more."""
        self._pool = pool

    # -- the pool's side: none of these waits for the store

    def take(self) -> Assignment | None:
        """Return the next task of the jobs in turn, or None if no job has one."""
        with self._lock:
            for _ in range(len(self._active)):
                active = self._active[0]
                self._active.rotate(-1)  # the next job is first, even if this one has no task
                if (task := active.take()) is not None:
                    payload = {**self._payload(task), "jobCreatedAt": active.job_created_at}
                    return Assignment(task.job_id, task.task_id, payload)
        return None

    def finish(self, result: TaskResult) -> None:
        """Keep the result of a task until its job's thread counts it."""
        if (active := self._find_active(result.job_id)) is not None:
            active.finish(result)

    def give_back(self, assignment: Assignment) -> None:
        """Make a task ready again that the pool did not finish."""
        if (active := self._find_active(assignment.job_id)) is not None:
            active.give_back(assignment.task_id)

    # -- the jobs' side

    @property
    def running(self) -> list[str]:
        """The ids of the jobs that run in this process."""
        with self._lock:
            return [active.job_id for active in self._active]

    def cancel(self, job_id: str) -> None:
        """End the job's run and its running tasks, because its outcome is not wanted."""
        if (active := self._find_active(job_id)) is not None:
            active.cancel()

    def leave_now(self) -> None:
        """Let every job leave at once that should leave, without draining its tasks."""
        self._leave_now.set()

    def run(
        self,
        job: ExportJob,
        *,
        lost: Event,
        should_leave: Callable[[], bool] = lambda: False,
        on_progress: Callable[[ExportJob], None] = lambda job: None,
    ) -> ExportJob:
        """Work on a sealed job until its outcome is decided, and return the job.

        Returns early, with the job undecided, in two cases. If `lost` is set or the job is
        cancelled, it returns at once. If `should_leave()` is true, it returns after the
        running tasks had `drain_seconds` to finish. `on_progress` is called whenever
        results were counted.
        """
        with self._enter(job) as active:
            progress = _ProgressMonitor(active, self._pool, self._progress_seconds, self._clock)
            leave_at: float | None = None
            while not (job.is_decided or active.is_cancelled or lost.is_set()):
                if leave_at is None and should_leave():
                    active.close()
                    leave_at = self._clock.monotonic() + self._drain_seconds
                if leave_at is not None and self._can_leave(active, leave_at):
                    break
                try:
                    before, job = job, self._step(active, job)
                    if job is not before:
                        on_progress(job)
                        progress.restart()
                    elif progress.has_moved():
                        self._jobs.note_progress(active.job_id)
                except StoreUnavailable:  # results that are not counted stay in `active`
                    active.wait(self._pause_seconds)
            cancelled = active.is_cancelled
        return self._jobs.find_by_id(job.job_id) or job if cancelled else job

    def _step(self, active: ActiveJob, job: ExportJob) -> ExportJob:
        if active.needs_tasks:
            page = self._jobs.tasks(
                job.job_id, status=TaskStatus.PENDING, after=active.listed_to, limit=PAGE_SIZE
            )
            active.add_page(page)
            self._pool.wake()
        if results := active.wait_for_results(_RESULT_WAIT_SECONDS):
            job = self._tracker.count(active.job_id, results)
            active.remove_counted(results)
            self._pool.wake()
        elif active.is_exhausted:
            job = self._tracker.complete(active.job_id)
            if not job.is_decided:
                # A task is neither counted nor in the listing. Wait, then list again.
                active.wait(self._pause_seconds)
                active.restart_listing()
        return job

    def _can_leave(self, active: ActiveJob, leave_at: float) -> bool:
        is_over = self._leave_now.is_set() or self._clock.monotonic() >= leave_at
        return active.is_idle or is_over

    @contextmanager
    def _enter(self, job: ExportJob) -> Iterator[ActiveJob]:
        job_id, active = job.job_id, ActiveJob(job.job_id, job.created_at)
        with self._lock:
            if any(other.job_id == job_id for other in self._active):
                raise HoldfastError(f"job {job_id!r} already runs in this process")
            self._active.append(active)
        try:
            yield active
        finally:
            with self._lock:
                self._active.remove(active)
            if active.has_running_tasks:
                self._pool.cancel(job_id)

    def _find_active(self, job_id: str) -> ActiveJob | None:
        with self._lock:
            return next((active for active in self._active if active.job_id == job_id), None)


class _ProgressMonitor:
    """Notices that a job processes bytes while no task finishes, as with a large file."""

    def __init__(self, active: ActiveJob, pool: TaskPool, seconds: float, clock: Clock) -> None:
        self._active, self._pool, self._clock = active, pool, clock
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        running_bytes = self._pool.count_running_bytes(self._active.job_id)
        self._bytes = self._active.bytes_done + running_bytes
        self._check_at = self._clock.monotonic() + self._seconds

    def has_moved(self) -> bool:
        """Return whether a check is due and bytes were processed since the last one."""
        if self._clock.monotonic() < self._check_at:
            return False
        before = self._bytes
        self.restart()
        return self._bytes != before


class _NoPool:
    def wake(self) -> None: ...

    def cancel(self, job_id: str) -> None: ...

    def count_running_bytes(self, job_id: str) -> int:
        return 0
