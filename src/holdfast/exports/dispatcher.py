"""The dispatcher gives the tasks of the running jobs to the pool and counts their results.

Each job has a thread of its own, which is the thread that holds the job's message. In this
process only that thread reads and writes the job's rows. So results of one job never
compete with each other, and all results that came in meanwhile are counted together.

Tasks that are not counted when this process dies are still PENDING in the store, so the
next process that gets the job's message does them again. It skips those that are counted.

Another process, or the reconciler of this one, may end a job that runs here. Its thread notices
that when it counts results, or else when it reads the row every `progress_seconds`.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition, Event, Lock
from typing import Any, Protocol

from holdfast.errors import HoldfastError
from holdfast.events import Events
from holdfast.exports.errors import StoreUnavailable
from holdfast.exports.events import JobCancelled
from holdfast.exports.model import ExportJob, ExportTask, TaskResult, TaskStatus
from holdfast.exports.pool.worker import Assignment
from holdfast.exports.ports import JobStateRepository
from holdfast.exports.tracker import JobTracker, require_job
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

Payload = Callable[[ExportTask], Mapping[str, Any]]

_RESULT_WAIT_SECONDS = 0.25
PAGE_SIZE = 1000  # about as many tasks of a job are in memory at a time
_LOW = PAGE_SIZE // 4
_MAX_COUNTED_TOGETHER = 990  # results: ten transactions of DynamoDB
_MAX_UNCOUNTED = 5000  # results that may wait while the store does not respond
# A transaction costs much more than a result in it. So a result waits so long for others,
# unless it is the last one. If the process crashes meanwhile, its task is done again.
_GATHER_SECONDS = 0.05


class ActiveJob:
    """One job while it runs here: its tasks between the store and the pool.

        job's thread    add_page ─▶ ready ─┐            ┌─▶ results ─▶ remove_counted
        pool's thread                      └▶ take … finish
                                     ready ◀─── give_back

    Both threads hold the lock only for a moment, and neither waits for the other's work.
    """

    def __init__(
        self,
        job_id: str,
        job_created_at: float = 0.0,
        gather_seconds: float = _GATHER_SECONDS,
    ) -> None:
        self.job_id = job_id
        self.job_created_at = job_created_at
        self._gather_seconds = gather_seconds
        self.listed_to: str | None = None  # the last task that was read from the store
        self.seen_bytes = 0  # of its running tasks, when the job was last checked
        self.check_at = 0.0
        self._changed = Condition()  # its lock is reentrant
        self._ready: deque[ExportTask] = deque()
        self._running: dict[str, ExportTask] = {}
        self._results: list[TaskResult] = []
        self._listed_all = False
        self._open = True
        self._gathering = False  # the job's thread waits for more results

    # -- the pool's side

    def take(self) -> ExportTask | None:
        """Hand out the next task, or None if none is ready or too many are uncounted."""
        with self._changed:
            if not (self._open and self._ready) or len(self._results) >= _MAX_UNCOUNTED:
                return None
            task = self._ready.popleft()
            self._running[task.task_id] = task
            if len(self._ready) == _LOW:
                self._changed.notify()
            return task

    def finish(self, result: TaskResult) -> None:
        """Keep the result of a running task; ignore it if the task does not run."""
        with self._changed:
            if self._running.pop(result.task_id, None) is not None:
                self._results.append(result)
                if not (self._gathering and self._can_gather):
                    self._changed.notify()

    def give_back(self, task_id: str) -> None:
        """Make a running task ready again, ahead of the others."""
        with self._changed:
            task = self._running.pop(task_id, None)
            if task is not None:
                self._ready.appendleft(task)
            self._changed.notify()

    # -- the job's side

    @property
    def needs_tasks(self) -> bool:
        """Whether it is time to read the next page of tasks."""
        with self._changed:
            return self._open and not self._listed_all and len(self._ready) <= _LOW

    def add_page(self, page: Sequence[ExportTask]) -> None:
        """Add the tasks that follow `listed_to`; a page that is not full is the last one."""
        with self._changed:
            self._listed_all = len(page) < PAGE_SIZE
            if page:
                self.listed_to = page[-1].task_id
            self._ready.extend(task for task in page if task.task_id not in self._running)

    def restart_listing(self) -> None:
        """List the tasks again from the beginning."""
        with self._changed:
            self._listed_all, self.listed_to = False, None

    def wait_for_results(self, wait_seconds: float) -> Sequence[TaskResult]:
        """Return the results to count next; wait for them unless there is other work to do."""
        with self._changed:
            busy = self.is_exhausted or self.needs_tasks
            if not (self._results or busy):
                self._changed.wait(wait_seconds)
            if self._results and not busy and self._can_gather:
                self._gathering = True
                self._changed.wait(self._gather_seconds)
                self._gathering = False
            return self._results[:_MAX_COUNTED_TOGETHER]

    @property
    def _can_gather(self) -> bool:
        """Whether more results will come that can be counted in the same transactions."""
        expects_more = bool(self._running or self._ready)
        return expects_more and len(self._results) < _MAX_COUNTED_TOGETHER

    def remove_counted(self, results: Sequence[TaskResult]) -> None:
        """Remove the results that `wait_for_results` returned, because they are stored now."""
        with self._changed:
            del self._results[: len(results)]

    @property
    def is_exhausted(self) -> bool:
        """Whether every task that the store listed is finished and counted."""
        with self._changed:
            return self._listed_all and not (self._ready or self._running or self._results)

    @property
    def is_idle(self) -> bool:
        """Whether no task runs and no result waits to be counted."""
        with self._changed:
            return not (self._running or self._results)

    @property
    def has_running_tasks(self) -> bool:
        """Whether the pool has tasks of this job."""
        with self._changed:
            return bool(self._running)

    def close(self) -> None:
        """Hand out no more tasks; those that run may finish."""
        with self._changed:
            self._open = False

    def wait(self, seconds: float) -> None:
        """Wait until something changes, at most so long."""
        with self._changed:
            self._changed.wait(seconds)


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
        events: Events | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Create a dispatcher; `payload` makes the data that a worker gets for a task.

        A job that finishes no task is checked every `progress_seconds`, and the bytes that it
        processed are noted in the store as progress. If the store does not respond, the
        dispatcher tries again after `pause_seconds`.
        """
        self._jobs = jobs
        self._tracker = tracker
        self._payload = payload
        self._drain_seconds = drain_seconds
        self._progress_seconds = progress_seconds
        self._pause_seconds = pause_seconds
        self._events = Events() if events is None else events
        self._clock = clock
        self._lock = Lock()
        self._active: deque[ActiveJob] = deque()
        self._pool: TaskPool  # attached before the first job runs
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

        Returns early, with the job undecided, in two cases. If `lost` is set, it returns at
        once. If `should_leave()` is true, it returns after the running tasks had
        `drain_seconds` to finish. `on_progress` is called whenever results were counted.
        Raises JobNotFound if the job was deleted.
        """
        with self._enter(job) as active:
            leave_at: float | None = None
            while not (job.is_decided or lost.is_set()):
                if leave_at is None and should_leave():
                    active.close()
                    leave_at = self._clock.monotonic() + self._drain_seconds
                if leave_at is not None and self._can_leave(active, leave_at):
                    break
                try:
                    before, job = job, self._step(active, job)
                    if job is not before:
                        on_progress(job)
                        active.check_at = self._clock.monotonic() + self._progress_seconds
                    elif self._clock.monotonic() >= active.check_at:
                        job = self._check_job(active)
                except StoreUnavailable:  # results that are not counted stay in `active`
                    active.wait(self._pause_seconds)
            if job.is_decided and active.has_running_tasks:
                error = job.error or job.callback.error
                self._events.emit(JobCancelled(job.job_id, error.code if error else ""))
        return job

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

    def _check_job(self, active: ActiveJob) -> ExportJob:
        """Return the stored job, which may have ended elsewhere, while no task finishes.

        If bytes were processed meanwhile, as of a large file, note that as progress.
        """
        active.check_at = self._clock.monotonic() + self._progress_seconds
        seen_bytes = self._pool.count_running_bytes(active.job_id)
        has_moved, active.seen_bytes = seen_bytes != active.seen_bytes, seen_bytes
        if has_moved:
            return self._jobs.note_progress(active.job_id)
        return require_job(self._jobs, active.job_id)

    def _can_leave(self, active: ActiveJob, leave_at: float) -> bool:
        is_over = self._leave_now.is_set() or self._clock.monotonic() >= leave_at
        return active.is_idle or is_over

    @contextmanager
    def _enter(self, job: ExportJob) -> Iterator[ActiveJob]:
        job_id, active = job.job_id, ActiveJob(job.job_id, job.created_at)
        active.check_at = self._clock.monotonic() + self._progress_seconds
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
