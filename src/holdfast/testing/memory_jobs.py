"""A job store in memory, on plain values. Other stores are compared with it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import RLock

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.jobs.errors import (
    AlreadySealed,
    IllegalTransition,
    JobClosed,
    JobExists,
    JobNotFound,
)
from holdfast.jobs.model import (
    ACTIVE,
    Callback,
    CallbackState,
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.jobs.ports import JobStateRepository


class JobMemory:
    """The stored jobs and tasks. Several MemoryJobs may share them."""

    def __init__(self) -> None:
        self.jobs: dict[str, ExportJob] = {}
        self.tasks: dict[str, dict[str, ExportTask]] = {}
        self.lock = RLock()


class MemoryJobs(JobStateRepository):
    """A job store that lasts as long as its memory. Safe for threads."""

    def __init__(
        self,
        memory: JobMemory | None = None,
        clock: Clock = SYSTEM_CLOCK,
        keep_seconds: float | None = None,
    ) -> None:
        self._memory = JobMemory() if memory is None else memory
        self._clock = clock
        self._keep_seconds = keep_seconds

    def save(self, job: ExportJob) -> None:
        with self._memory.lock:
            if job.job_id in self._memory.jobs:
                raise JobExists(job.job_id)
            self._memory.jobs[job.job_id] = job
            self._memory.tasks[job.job_id] = {}

    def find_by_id(self, job_id: str) -> ExportJob | None:
        return self._memory.jobs.get(job_id)

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        with self._memory.lock:
            return [job for job in self._memory.jobs.values() if job.status is status]

    def update_job_status(
        self, job_id: str, status: JobStatus, error: JobError | None = None
    ) -> None:
        with self._memory.lock:
            job = self._read(job_id)
            if job.status is status:
                return
            state = job.state.moved_to(status)
            if status.terminal and not _can_end(job, status):
                raise IllegalTransition(job_id)
            self._put(self._end(job, status, error) if status.terminal else job, state=state)

    def update_job_state(self, job_id: str, state: JobState) -> None:
        with self._memory.lock:
            if replace(self._read(job_id).state, status=state.status) != state:
                raise IllegalTransition(job_id)
            self.update_job_status(job_id, state.status)

    def increment_completed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        self._increment(job_id, task_id, True)

    def increment_failed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        self._increment(job_id, task_id, False)

    def _increment(self, job_id: str, task_id: str | None, success: bool) -> None:
        with self._memory.lock:
            self._check_counting(job_id)
            if task_id is None:
                rows = self._memory.tasks[job_id]
                task_id = f"~{len(rows)}"
                rows[task_id] = ExportTask(job_id, task_id, "", "")
            self.record_results(job_id, [TaskResult(job_id, task_id, success)])

    def set_total_tasks(self, job_id: str, total_tasks: int) -> None:
        with self._memory.lock:
            job = self._read(job_id)
            if job.sealed and job.state.total_tasks == total_tasks:
                return
            self._check_undecided(job)
            if job.sealed:
                raise AlreadySealed(job_id)
            state = replace(job.state, total_tasks=total_tasks)
            remaining = job.remaining_tasks + total_tasks
            self._put(job, state=state, sealed=True, remaining_tasks=remaining)

    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        with self._memory.lock:
            job = self._read(job_id)
            self._check_undecided(job)
            if job.sealed:
                raise AlreadySealed(job_id)
            for task in tasks:
                pending = replace(task, status=TaskStatus.PENDING)
                self._memory.tasks[job_id].setdefault(task.task_id, pending)
            self._put(job)

    def tasks(
        self,
        job_id: str,
        *,
        status: TaskStatus | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> list[ExportTask]:
        with self._memory.lock:
            self._read(job_id)
            rows = sorted(self._memory.tasks[job_id].values(), key=lambda task: task.task_id)
        following = [task for task in rows if after is None or task.task_id > after]
        return [task for task in following if status in (None, task.status)][:limit]

    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        with self._memory.lock:
            self._check_counting(job_id)
            return sum(self._count(job_id, result) for result in results)

    def _count(self, job_id: str, result: TaskResult) -> bool:
        rows = self._memory.tasks[job_id]
        task = rows.get(result.task_id)
        if task is None or task.status is not TaskStatus.PENDING:
            return False
        status = TaskStatus.COMPLETED if result.success else TaskStatus.FAILED
        rows[result.task_id] = replace(
            task, status=status, bytes_processed=result.bytes_processed, error=result.error
        )
        job = self._read(job_id)
        field = "completed_tasks" if result.success else "failed_tasks"
        self._put(
            job,
            state=replace(job.state, **{field: getattr(job.state, field) + 1}),
            remaining_tasks=job.remaining_tasks - 1,
            last_progress_at=self._clock.time(),
        )
        return True

    def note_progress(self, job_id: str) -> None:
        with self._memory.lock:
            job = self._read(job_id)
            if not job.terminal:
                self._put(job, last_progress_at=self._clock.time())

    def claim_outcome(self, job_id: str) -> ExportJob | None:
        with self._memory.lock:
            job = self._read(job_id)
            if not job.all_counted:
                return None
            failures = job.state.failed_tasks
            if not failures:
                return self._decide(job, JobStatus.COMPLETED, None)
            error = JobError("JobCompletedWithFailures", f"{failures} tasks failed")
            return self._decide(job, JobStatus.FAILED, error)

    def give_up(self, job_id: str, error: JobError) -> ExportJob | None:
        with self._memory.lock:
            job = self._read(job_id)
            if job.terminal or job.callback.state is not CallbackState.NONE:
                return None
            return self._decide(job, JobStatus.FAILED, error)

    def _decide(self, job: ExportJob, status: JobStatus, error: JobError | None) -> ExportJob:
        return self._put(job, callback=Callback(CallbackState.PENDING, status, error))

    def begin_callback(self, job_id: str, *, again_after_seconds: float) -> ExportJob | None:
        with self._memory.lock:
            job, now = self._read(job_id), self._clock.time()
            since = job.callback.attempted_at
            if job.callback.state is not CallbackState.PENDING:
                return None
            if since is not None and now - since < again_after_seconds:
                return None
            attempts = job.callback.attempts + 1
            begun = replace(job.callback, attempts=attempts, in_doubt=True, attempted_at=now)
            self._put(job, callback=begun)
            return job

    def end_callback(self, job_id: str, *, in_doubt: bool) -> None:
        with self._memory.lock:
            job = self._read(job_id)
            if job.callback.state is CallbackState.PENDING:
                ended = replace(job.callback, in_doubt=in_doubt, attempted_at=None)
                self._put(job, callback=ended)

    def settle(self, job_id: str, status: JobStatus, error: JobError | None) -> bool:
        if not status.terminal:
            raise IllegalTransition(job_id)
        with self._memory.lock:
            job = self._read(job_id)
            if job.callback.state is not CallbackState.PENDING:
                return False
            self._put(self._end(job, status, error), state=job.state.moved_to(status))
            return True

    def attach_token(self, job_id: str, token: TaskToken) -> ExportJob:
        with self._memory.lock:
            job = self._read(job_id)
            if job.has_seen(token):
                return job
            self._check_undecided(job)
            return self._put(
                job,
                task_token=token,
                token_generation=job.token_generation + 1,
                seen_tokens=job.seen_tokens | {token.mark},
            )

    def close(self) -> None:
        pass

    # -- what the methods share

    def _read(self, job_id: str) -> ExportJob:
        try:
            return self._memory.jobs[job_id]
        except KeyError:
            raise JobNotFound(job_id) from None

    def _check_undecided(self, job: ExportJob) -> None:
        if job.status not in ACTIVE or job.callback.state is not CallbackState.NONE:
            raise JobClosed(job.job_id)

    def _check_counting(self, job_id: str) -> None:
        self._check_undecided(self._read(job_id))
        if self._read(job_id).status is not JobStatus.DOWNLOADING:
            raise JobClosed(job_id)

    def _put(self, job: ExportJob, **changes: object) -> ExportJob:
        changed = replace(job, updated_at=self._clock.time(), **changes)  # type: ignore[arg-type]
        self._memory.jobs[job.job_id] = changed
        return changed

    def _end(self, job: ExportJob, status: JobStatus, error: JobError | None) -> ExportJob:
        now = self._clock.time()
        return replace(
            job,
            task_token=None,
            callback=Callback(CallbackState.SENT, status, error, job.callback.attempts),
            error=error,
            completed_at=now,
            ttl=None if self._keep_seconds is None else int(now + self._keep_seconds),
        )


def _can_end(job: ExportJob, status: JobStatus) -> bool:
    if job.has_task_token() or job.callback.state is not CallbackState.NONE:
        return False
    done = job.sealed and job.remaining_tasks == 0 and job.state.failed_tasks == 0
    return done or status is JobStatus.FAILED
