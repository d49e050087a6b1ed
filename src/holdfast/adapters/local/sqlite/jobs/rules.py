"""What each call makes of a job. Values in, values out; None: there is nothing to do.

The store puts a transaction around each, so that the job it sees is the job there is.
"""

from dataclasses import replace

from holdfast.jobs.errors import AlreadySealed, IllegalTransition, JobClosed
from holdfast.jobs.model import (
    Callback,
    CallbackState,
    ExportJob,
    JobError,
    JobState,
    JobStatus,
    TaskToken,
)

COMPLETED_WITH_FAILURES = "JobCompletedWithFailures"


def move_job(
    job: ExportJob, status: JobStatus, error: JobError | None, now: float, ttl: int | None
) -> ExportJob | None:
    if job.status is status:
        return None
    state = job.state.moved_to(status)
    if not status.terminal:
        return replace(job, state=state)
    if job.has_task_token():
        raise IllegalTransition("somebody waits for this job's answer: settle it instead")
    if job.callback.state is not CallbackState.NONE:
        raise IllegalTransition("the outcome of this job is decided: settle it instead")
    if status is JobStatus.COMPLETED and not _has_only_successes(job):
        raise IllegalTransition("not every task of this job is known to have succeeded")
    return end_job(job, status, error, now, ttl)


def _has_only_successes(job: ExportJob) -> bool:
    return job.sealed and job.remaining_tasks == 0 and job.state.failed_tasks == 0


def require_counters(job: ExportJob, state: JobState) -> None:
    if replace(job.state, status=state.status) != state:
        raise IllegalTransition("the counters of this job are other ones by now")


def end_job(
    job: ExportJob, status: JobStatus, error: JobError | None, now: float, ttl: int | None
) -> ExportJob:
    return replace(
        job,
        state=job.state.moved_to(status),
        task_token=None,
        callback=replace(
            job.callback, state=CallbackState.SENT, in_doubt=False, attempted_at=None
        ),
        error=error,
        completed_at=now,
        ttl=ttl,
    )


def seal_job(job: ExportJob, total_tasks: int) -> ExportJob | None:
    if job.sealed and job.state.total_tasks == total_tasks:
        return None
    require_open(job)
    return replace(
        job,
        sealed=True,
        state=replace(job.state, total_tasks=total_tasks),
        remaining_tasks=job.remaining_tasks + total_tasks,
    )


def require_open(job: ExportJob) -> None:
    """That tasks may be added. Raises JobClosed, AlreadySealed."""
    require_undecided(job)
    if job.sealed:
        raise AlreadySealed(f"this job has {job.state.total_tasks} tasks, and no others")


def require_undecided(job: ExportJob) -> None:
    if job.terminal or job.callback.state is not CallbackState.NONE:
        raise JobClosed("the outcome of this job is decided")


def require_counting(job: ExportJob) -> None:
    require_undecided(job)
    if job.status is not JobStatus.DOWNLOADING:
        raise JobClosed(f"a job that is {job.status} counts no results")


def count_results(job: ExportJob, completed: int, failed: int, now: float) -> ExportJob | None:
    if not completed + failed:
        return None
    state = replace(
        job.state,
        completed_tasks=job.state.completed_tasks + completed,
        failed_tasks=job.state.failed_tasks + failed,
    )
    remaining = job.remaining_tasks - completed - failed
    return replace(job, state=state, remaining_tasks=remaining, last_progress_at=now)


def record_progress(job: ExportJob, now: float) -> ExportJob | None:
    return None if job.terminal else replace(job, last_progress_at=now)


def claim_outcome(job: ExportJob) -> ExportJob | None:
    if not job.all_counted:
        return None
    failures = job.state.failed_tasks
    if not failures:
        return _decide_outcome(job, JobStatus.COMPLETED, None)
    error = JobError(COMPLETED_WITH_FAILURES, f"{failures} tasks failed")
    return _decide_outcome(job, JobStatus.FAILED, error)


def give_up_job(job: ExportJob, error: JobError) -> ExportJob | None:
    if job.terminal or job.callback.state is not CallbackState.NONE:
        return None
    return _decide_outcome(job, JobStatus.FAILED, error)


def _decide_outcome(job: ExportJob, status: JobStatus, error: JobError | None) -> ExportJob:
    return replace(job, callback=Callback(CallbackState.PENDING, status, error))


def begin_attempt(job: ExportJob, now: float, again_after_seconds: float) -> ExportJob | None:
    """With an attempt at the callback under way."""
    callback = job.callback
    if callback.state is not CallbackState.PENDING:
        return None
    if callback.attempted_at is not None and now - callback.attempted_at < again_after_seconds:
        return None
    attempts = callback.attempts + 1
    noted = replace(callback, attempts=attempts, in_doubt=True, attempted_at=now)
    return replace(job, callback=noted)


def end_attempt(job: ExportJob, in_doubt: bool) -> ExportJob | None:
    """With no attempt under way any more."""
    if job.callback.state is not CallbackState.PENDING:
        return None
    return replace(job, callback=replace(job.callback, in_doubt=in_doubt, attempted_at=None))


def settle_job(
    job: ExportJob, status: JobStatus, error: JobError | None, now: float, ttl: int | None
) -> ExportJob | None:
    if not status.terminal:
        raise IllegalTransition(f"a job is not settled as {status}")
    if job.callback.state is not CallbackState.PENDING:
        return None
    return end_job(job, status, error, now, ttl)


def attach_token(job: ExportJob, token: TaskToken) -> ExportJob | None:
    if job.has_seen(token):
        return None
    require_undecided(job)
    return replace(
        job,
        task_token=token,
        token_generation=job.token_generation + 1,
        seen_tokens=job.seen_tokens | {token.mark},
    )
