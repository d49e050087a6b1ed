"""Apply each call of the store to a job, as pure functions.

None means that nothing changes. The store puts a transaction around each function, so the job
that it sees is current.
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
    """Return the job with another status.

    Raises IllegalTransition for a step that the model does not allow.
    """
    if job.status is status:
        return None
    state = job.state.moved_to(status)
    if not status.terminal:
        return replace(job, state=state)
    if job.has_task_token():
        raise IllegalTransition("an execution waits for this job's callback: settle it instead")
    if job.callback.state is not CallbackState.NONE:
        raise IllegalTransition("this job's outcome is decided: settle it instead")
    if status is JobStatus.COMPLETED and not _has_only_successes(job):
        raise IllegalTransition("not all tasks of this job are counted as successful")
    return end_job(job, status, error, now, ttl)


def _has_only_successes(job: ExportJob) -> bool:
    return job.sealed and job.remaining_tasks == 0 and job.state.failed_tasks == 0


def require_counters(job: ExportJob, state: JobState) -> None:
    """Raise IllegalTransition unless the job has these counters."""
    if replace(job.state, status=state.status) != state:
        raise IllegalTransition("the counters of this job have changed")


def end_job(
    job: ExportJob, status: JobStatus, error: JobError | None, now: float, ttl: int | None
) -> ExportJob:
    """Return the job with a terminal status and its callback sent."""
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
    """Return the sealed job. Raises JobClosed or AlreadySealed."""
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
    """Require that tasks may be added. Raises JobClosed or AlreadySealed."""
    require_undecided(job)
    if job.sealed:
        raise AlreadySealed(f"this job is sealed with {job.state.total_tasks} tasks")


def require_undecided(job: ExportJob) -> None:
    """Raise JobClosed if the outcome is decided."""
    if job.terminal or job.callback.state is not CallbackState.NONE:
        raise JobClosed("this job's outcome is decided")


def require_counting(job: ExportJob) -> None:
    """Raise JobClosed unless the job counts results."""
    require_undecided(job)
    if job.status is not JobStatus.DOWNLOADING:
        raise JobClosed(f"a job that is {job.status} counts no results")


def count_results(job: ExportJob, completed: int, failed: int, now: float) -> ExportJob | None:
    """Return the job with these results added, or None if there are none."""
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
    """Return the job with a new time of progress, or None if it is terminal."""
    return None if job.terminal else replace(job, last_progress_at=now)


def claim_outcome(job: ExportJob) -> ExportJob | None:
    """Return the job with its outcome decided, or None if results are missing."""
    if not job.all_counted:
        return None
    failures = job.state.failed_tasks
    if not failures:
        return _decide_outcome(job, JobStatus.COMPLETED, None)
    error = JobError(COMPLETED_WITH_FAILURES, f"{failures} tasks failed")
    return _decide_outcome(job, JobStatus.FAILED, error)


def give_up_job(job: ExportJob, error: JobError) -> ExportJob | None:
    """Return the job decided as failed, or None if its outcome is decided already."""
    if job.terminal or job.callback.state is not CallbackState.NONE:
        return None
    return _decide_outcome(job, JobStatus.FAILED, error)


def _decide_outcome(job: ExportJob, status: JobStatus, error: JobError | None) -> ExportJob:
    return replace(job, callback=Callback(CallbackState.PENDING, status, error))


def begin_attempt(job: ExportJob, now: float, again_after_seconds: float) -> ExportJob | None:
    """Return the job with a callback attempt under way, or None if none may begin."""
    callback = job.callback
    if callback.state is not CallbackState.PENDING:
        return None
    if callback.attempted_at is not None and now - callback.attempted_at < again_after_seconds:
        return None
    attempts = callback.attempts + 1
    attempted = replace(callback, attempts=attempts, in_doubt=True, attempted_at=now)
    return replace(job, callback=attempted)


def end_attempt(job: ExportJob, in_doubt: bool) -> ExportJob | None:
    """Return the job without a callback attempt under way, or None if no callback
    is pending.
    """
    if job.callback.state is not CallbackState.PENDING:
        return None
    return replace(job, callback=replace(job.callback, in_doubt=in_doubt, attempted_at=None))


def settle_job(
    job: ExportJob, status: JobStatus, error: JobError | None, now: float, ttl: int | None
) -> ExportJob | None:
    """Return the settled job, or None if no callback is pending."""
    if not status.terminal:
        raise IllegalTransition(f"a job cannot be settled as {status}")
    if job.callback.state is not CallbackState.PENDING:
        return None
    return end_job(job, status, error, now, ttl)


def attach_token(job: ExportJob, token: TaskToken) -> ExportJob | None:
    """Return the job with this token, or None if it had the token before."""
    if job.has_seen(token):
        return None
    require_undecided(job)
    return replace(
        job,
        task_token=token,
        token_generation=job.token_generation + 1,
        seen_tokens=job.seen_tokens | {token.mark},
    )
