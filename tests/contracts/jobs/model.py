"""What a job store must remember: the facts of a job, for one thread.

A job's counters are the numbers of its finished tasks, and its callback is its outcome. The
model uses no rule and no row of a store, so that a store is not compared with itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from contracts.jobs.support import CLOSED
from holdfast.exports.errors import (
    AlreadySealed,
    IllegalTransition,
    JobClosed,
    JobExists,
    JobNotFound,
)
from holdfast.exports.model import (
    NO_CALLBACK,
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
from holdfast.testing import ManualClock

MOVES = {
    JobStatus.PROCESSING: {JobStatus.DOWNLOADING, JobStatus.FAILED},
    JobStatus.DOWNLOADING: {JobStatus.COMPLETED, JobStatus.FAILED},
    JobStatus.COMPLETED: set(),
    JobStatus.FAILED: set(),
}


@dataclass
class ModelJob:
    """The facts of a job."""

    saved: ExportJob
    status: JobStatus
    token: TaskToken | None
    progress_at: float
    tokens: list[TaskToken] = field(default_factory=list)  # all that it ever had
    tasks: dict[str, ExportTask] = field(default_factory=dict)
    total: int | None = None  # once it is sealed
    outcome: Callback | None = None  # once it is decided
    error: JobError | None = None
    ended_at: float | None = None
    token_closed_at: float | None = None

    @property
    def is_decided(self) -> bool:
        return self.outcome is not None

    @property
    def is_counting(self) -> bool:
        return self.status is JobStatus.DOWNLOADING and not self.is_decided

    @property
    def can_reopen(self) -> bool:
        error = self.error if self.ended_at else self.outcome and self.outcome.error
        return self.is_decided and error == CLOSED

    def count(self, status: TaskStatus) -> int:
        return sum(task.status is status for task in self.tasks.values())

    def show(self, keep_seconds: float) -> ExportJob:
        """Return the job as the port describes it."""
        completed, failed = self.count(TaskStatus.COMPLETED), self.count(TaskStatus.FAILED)
        total = self.total or 0
        first = self.saved.task_token
        return replace(
            self.saved,
            state=JobState(self.status, total, completed, failed),
            task_token=self.token,
            token_generation=len(self.tokens) - (first is not None),
            seen_tokens=frozenset(token.mark for token in self.tokens),
            sealed=self.total is not None,
            remaining_tasks=total - completed - failed,
            callback=self.outcome or NO_CALLBACK,
            error=self.error,
            last_progress_at=self.progress_at,
            completed_at=self.ended_at,
            ttl=None if self.ended_at is None else int(self.ended_at + keep_seconds),
            token_closed_at=self.token_closed_at,
        )


class JobModel:
    """The port's calls, as far as the machine makes them."""

    def __init__(self, clock: ManualClock, keep_seconds: float) -> None:
        self._clock, self._keep_seconds = clock, keep_seconds
        self._jobs: dict[str, ModelJob] = {}

    def _find(self, job_id: str) -> ModelJob:
        if job_id not in self._jobs:
            raise JobNotFound(job_id)
        return self._jobs[job_id]

    def _show(self, job: ModelJob) -> ExportJob:
        return job.show(self._keep_seconds)

    # -- what is stored

    def find_by_id(self, job_id: str) -> ExportJob | None:
        return self._show(self._jobs[job_id]) if job_id in self._jobs else None

    def find_by_status(self, status: JobStatus) -> list[ExportJob]:
        return [self._show(job) for job in self._jobs.values() if job.status is status]

    def tasks(self, job_id: str, *, status: TaskStatus | None = None) -> list[ExportTask]:
        tasks = sorted(self._find(job_id).tasks.values(), key=lambda task: task.task_id)
        return [task for task in tasks if status in (None, task.status)]

    def save(self, job: ExportJob) -> None:
        if job.job_id in self._jobs:
            raise JobExists(job.job_id)
        token = job.task_token
        self._jobs[job.job_id] = ModelJob(
            job, job.status, token, job.last_progress_at, [token] if token else []
        )

    # -- the status: a job with a token ends by its callback, and one that failed a task fails

    def update_job_status(
        self, job_id: str, status: JobStatus, error: JobError | None = None
    ) -> None:
        job = self._find(job_id)
        if job.status is status:
            return
        shown = self._show(job)
        all_succeeded = (shown.sealed, shown.remaining_tasks, shown.state.failed_tasks) == (
            True,
            0,
            0,
        )
        may_end = not job.token and not job.is_decided
        may_end = may_end and (status is JobStatus.FAILED or all_succeeded)
        if status not in MOVES[job.status] or (status.terminal and not may_end):
            raise IllegalTransition(job_id)
        job.status = status
        if status.terminal:
            self._end(job, status, error)

    def update_job_state(self, job_id: str, state: JobState) -> None:
        job = self._find(job_id)
        if replace(self._show(job).state, status=state.status) != state:
            raise IllegalTransition(job_id)
        self.update_job_status(job_id, state.status)

    def _end(self, job: ModelJob, status: JobStatus, error: JobError | None) -> None:
        job.status, job.error, job.ended_at = status, error, self._clock.time()
        job.outcome = Callback(CallbackState.SENT)
        job.token = job.token_closed_at = None

    # -- tasks: each counts once, while the job is downloading and not decided

    def add_tasks(self, job_id: str, tasks: Iterable[ExportTask]) -> None:
        job = self._find_listing(job_id)
        for task in tasks:
            job.tasks.setdefault(task.task_id, task)

    def set_total_tasks(self, job_id: str, total_tasks: int) -> None:
        if self._find(job_id).total != total_tasks:
            self._find_listing(job_id).total = total_tasks

    def _find_listing(self, job_id: str) -> ModelJob:
        job = self._find(job_id)
        if job.is_decided:
            raise JobClosed(job_id)
        if job.total is not None:
            raise AlreadySealed(job_id)
        return job

    def record_results(self, job_id: str, results: Sequence[TaskResult]) -> int:
        job = self._find_counting(job_id)
        counted = 0
        for result in results:
            task = job.tasks.get(result.task_id)
            if task is not None and task.status is TaskStatus.PENDING:
                self._count(job, task, result)
                counted += 1
        return counted

    def increment_completed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        self._increment(job_id, task_id, success=True)

    def increment_failed_tasks(self, job_id: str, task_id: str | None = None) -> None:
        self._increment(job_id, task_id, success=False)

    def _increment(self, job_id: str, task_id: str | None, *, success: bool) -> None:
        job = self._find_counting(job_id)
        if task_id is None:
            unlisted = ExportTask(job_id, f"unlisted {len(job.tasks)}", "", "")
            self._count(job, unlisted, TaskResult(job_id, unlisted.task_id, success))
        else:
            self.record_results(job_id, [TaskResult(job_id, task_id, success)])

    def _find_counting(self, job_id: str) -> ModelJob:
        job = self._find(job_id)
        if not job.is_counting:
            raise JobClosed(job_id)
        return job

    def _count(self, job: ModelJob, task: ExportTask, result: TaskResult) -> None:
        status, size = result.status, result.bytes_processed
        job.tasks[task.task_id] = replace(task, status=status, bytes_processed=size)
        job.progress_at = self._clock.time()

    def note_progress(self, job_id: str) -> ExportJob:
        job = self._find(job_id)
        if job.ended_at is None:
            job.progress_at = self._clock.time()
        return self._show(job)

    # -- the outcome is decided once, and its callback is owed until it was sent

    def claim_outcome(self, job_id: str) -> ExportJob | None:
        job = self._find(job_id)
        finished = len(job.tasks) - job.count(TaskStatus.PENDING)
        if not job.is_counting or job.total != finished:
            return None
        failed = job.count(TaskStatus.FAILED)
        if not failed:
            return self._decide(job, JobStatus.COMPLETED, None)
        error = JobError("JobCompletedWithFailures", f"{failed} tasks failed")
        return self._decide(job, JobStatus.FAILED, error)

    def give_up(self, job_id: str, error: JobError) -> ExportJob | None:
        return self._decide(self._find(job_id), JobStatus.FAILED, error)

    def give_up_closed(self, job_id: str, *, grace_seconds: float) -> ExportJob | None:
        job = self._find(job_id)
        closed_at = job.token_closed_at
        if closed_at is None or self._clock.time() - closed_at < grace_seconds:
            return None
        return self._decide(job, JobStatus.FAILED, CLOSED)

    def _decide(
        self, job: ModelJob, status: JobStatus, error: JobError | None
    ) -> ExportJob | None:
        if job.is_decided:
            return None
        job.outcome = Callback(CallbackState.PENDING, status, error)
        return self._show(job)

    def begin_callback(self, job_id: str, *, again_after_seconds: float) -> ExportJob | None:
        job, now = self._find(job_id), self._clock.time()
        if (owed := self._get_owed(job, None)) is None:
            return None
        if owed.attempted_at is not None and now - owed.attempted_at < again_after_seconds:
            return None
        before = self._show(job)
        tries = owed.attempts + 1
        job.outcome = replace(owed, attempts=tries, in_doubt=True, attempted_at=now)
        return before

    def end_callback(
        self, job_id: str, *, in_doubt: bool, generation: int | None = None
    ) -> None:
        job = self._find(job_id)
        if (owed := self._get_owed(job, generation)) is not None:
            job.outcome = replace(owed, in_doubt=in_doubt, attempted_at=None)

    def settle(
        self,
        job_id: str,
        status: JobStatus,
        error: JobError | None,
        *,
        generation: int | None = None,
    ) -> bool:
        job = self._find(job_id)
        if self._get_owed(job, generation) is None:
            return False
        if status not in MOVES[job.status]:
            raise IllegalTransition(job_id)
        self._end(job, status, error)
        return True

    def _get_owed(self, job: ModelJob, generation: int | None) -> Callback | None:
        """Return the callback that is owed, if it is that of this generation of the token."""
        is_owed = job.outcome is not None and job.outcome.state is CallbackState.PENDING
        is_meant = generation in (None, self._show(job).token_generation)
        return job.outcome if is_owed and is_meant else None

    # -- the token: a job that failed because its token was closed may get another

    def note_token_closed(
        self, job_id: str, token: TaskToken, error: JobError
    ) -> ExportJob | None:
        job = self._find(job_id)
        if job.token != token or job.is_decided or job.token_closed_at is not None:
            return None
        job.token_closed_at, job.error = self._clock.time(), error
        return self._show(job)

    def attach_token(self, job_id: str, token: TaskToken) -> ExportJob:
        job = self._find(job_id)
        if token in job.tokens:
            return self._show(job)
        if job.is_decided and not job.can_reopen:
            raise JobClosed(job_id)
        if job.is_decided:
            job.status = JobStatus.DOWNLOADING
        job.token = token
        job.tokens.append(token)
        job.outcome = job.error = job.ended_at = job.token_closed_at = None
        return self._show(job)
