"""The rules of every change of a job, as pure functions. All job stores use them.

A rule takes the job, the time and its own arguments. It returns the new job, the same object
if nothing changes, or the refusal, which is the error that the store raises. `apply_rule` does
what all rules have in common.

A store applies a rule to the row that it read, and writes the result unless another writer
changed the row meanwhile. In that case it applies the rule again, to the newer row.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.exports.errors import AlreadySealed, IllegalTransition, JobClosed, JobNotFound
from holdfast.exports.model import (
    NO_CALLBACK,
    Callback,
    CallbackState,
    ExportJob,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskToken,
)

Rule = Callable[..., ExportJob | HoldfastError]


def apply_rule(
    rule: Rule, job: ExportJob, now: float, keep_seconds: float | None, *arguments: Any
) -> ExportJob:
    """Return the job as the rule leaves it, the same object if nothing changes.

    Every change moves `updated_at`. A job that ends gets its `ttl`, unless jobs are kept
    forever. Raises the refusal that the rule returns.
    """
    after = rule(job, now, *arguments)
    if isinstance(after, HoldfastError):
        raise after
    if after is job:
        return job
    ttl = compute_ttl(now, keep_seconds) if after.terminal else None
    return replace(after, updated_at=now, ttl=ttl)


def compute_ttl(now: float, keep_seconds: float | None) -> int | None:
    """Return when a row that is finished now may be deleted, or None if it is kept forever."""
    return None if keep_seconds is None else int(now + keep_seconds)


# -- the status


def move_job(
    job: ExportJob,
    _now: float,
    status: JobStatus,
    error: JobError | None,
    counters: JobState | None,
) -> ExportJob | HoldfastError:
    """Move the job to a status, if its counters are still these ones.

    A job that ends in this way owes no callback, because no execution waits for it.
    """
    if counters is not None and replace(job.state, status=counters.status) != counters:
        return IllegalTransition(
            "counters change only through results, and the job has different ones"
        )
    if job.status is status:
        return job
    if not _can_move(job, status):
        return _refuse_status(job, status)
    if status.terminal:
        callback = Callback(CallbackState.SENT, status, error)
        return _end_job(job, _now, status, error, callback)
    return replace(job, state=job.state.moved_to(status))


def _can_move(job: ExportJob, status: JobStatus) -> bool:
    if not job.status.can_become(status):
        return False
    if not status.terminal:
        return True
    if job.has_task_token() or job.is_decided:  # such a job ends when its callback is sent
        return False
    all_succeeded = job.sealed and job.remaining_tasks == 0 and job.state.failed_tasks == 0
    return status is JobStatus.FAILED or all_succeeded


def _refuse_status(job: ExportJob, status: JobStatus) -> IllegalTransition:
    obstacle = (
        "its token waits for a callback"
        if job.has_task_token() and status.terminal
        else f"{job.state.processed_tasks} of {job.state.total_tasks} tasks are counted, "
        f"{job.state.failed_tasks} failed"
    )
    return IllegalTransition(f"{_describe_state(job)}, {obstacle}: it cannot become {status}")


def _end_job(
    job: ExportJob, now: float, status: JobStatus, error: JobError | None, callback: Callback
) -> ExportJob:
    return replace(
        job,
        state=job.state.moved_to(status),
        task_token=None,
        callback=callback,
        error=error,
        completed_at=now,
        token_closed_at=None,
    )


# -- tasks and results


def seal_job(job: ExportJob, _now: float, total_tasks: int) -> ExportJob | HoldfastError:
    """Set the number of tasks.

    Results that came before the seal have made `remaining_tasks` negative, so the total is
    added to it.
    """
    if job.sealed and job.state.total_tasks == total_tasks:
        return job
    return _refuse_listing(job) or replace(
        job,
        sealed=True,
        state=replace(job.state, total_tasks=total_tasks),
        remaining_tasks=job.remaining_tasks + total_tasks,
    )


def accept_tasks(job: ExportJob, _now: float) -> ExportJob | HoldfastError:
    """Accept tasks of a listing. The write makes a concurrent seal conflict with it."""
    return _refuse_listing(job) or replace(job)


def _refuse_listing(job: ExportJob) -> HoldfastError | None:
    """Return why the job accepts no more tasks, or None if it does."""
    if job.is_decided:
        return JobClosed(f"{_describe_state(job)}: it accepts no more tasks")
    if job.sealed:
        name = shorten_name(job.job_id)
        return AlreadySealed(f"job {name} is sealed with {job.state.total_tasks} tasks")
    return None


def count_results(
    job: ExportJob, now: float, completed: int, failed: int
) -> ExportJob | HoldfastError:
    """Count tasks that were finished just now. Their rows are written in the same step."""
    if (refusal := _refuse_counting(job)) or not completed + failed:
        return refusal or job
    state = replace(
        job.state,
        completed_tasks=job.state.completed_tasks + completed,
        failed_tasks=job.state.failed_tasks + failed,
    )
    remaining = job.remaining_tasks - completed - failed
    return replace(job, state=state, remaining_tasks=remaining, last_progress_at=now)


def _refuse_counting(job: ExportJob) -> HoldfastError | None:
    """Return why the job counts no results, or None if it does."""
    if job.status is JobStatus.DOWNLOADING and not job.is_decided:
        return None
    return JobClosed(f"{_describe_state(job)}: it counts no results")


def keep_first_results(job_id: str, results: Sequence[TaskResult]) -> dict[str, TaskResult]:
    """Return the first result of each task of this job, by the task's id."""
    first_results: dict[str, TaskResult] = {}
    for result in results:
        if result.job_id == job_id:
            first_results.setdefault(result.task_id, result)
    return first_results


def record_progress(job: ExportJob, now: float) -> ExportJob:
    """Move the time of the last progress, unless the job is terminal."""
    return job if job.terminal else replace(job, last_progress_at=now)


# -- the outcome and its callback


def claim_outcome(job: ExportJob, _now: float) -> ExportJob:
    """Decide the outcome of a job whose tasks are all counted."""
    if not job.all_counted:
        return job
    if not job.state.failed_tasks:
        return replace(job, callback=Callback(CallbackState.PENDING, JobStatus.COMPLETED))
    reason = f"{job.state.failed_tasks} tasks failed"
    return give_up_job(job, _now, JobError("JobCompletedWithFailures", reason))


def give_up_job(job: ExportJob, _now: float, error: JobError) -> ExportJob:
    """Decide that the job failed, unless its outcome is decided."""
    if job.is_decided:
        return job
    return replace(job, callback=Callback(CallbackState.PENDING, JobStatus.FAILED, error))


def begin_attempt(job: ExportJob, now: float, again_after_seconds: float) -> ExportJob:
    """Begin to send a pending callback, unless another attempt began a moment ago.

    From now on the callback is in doubt, because this process may crash.
    """
    callback = job.callback
    if callback.state is not CallbackState.PENDING:
        return job
    if callback.attempted_at is not None and now - callback.attempted_at < again_after_seconds:
        return job
    attempts = callback.attempts + 1
    attempted = replace(callback, attempts=attempts, in_doubt=True, attempted_at=now)
    return replace(job, callback=attempted)


def end_attempt(
    job: ExportJob, _now: float, in_doubt: bool, generation: int | None
) -> ExportJob:
    """End an attempt that failed, so that any process may try again."""
    if not _owes_callback(job, generation):
        return job
    return replace(job, callback=replace(job.callback, in_doubt=in_doubt, attempted_at=None))


def settle_job(
    job: ExportJob,
    now: float,
    status: JobStatus,
    error: JobError | None,
    generation: int | None,
) -> ExportJob | HoldfastError:
    """End a job whose callback was sent. Its token is removed, because it is used up."""
    if not _owes_callback(job, generation):
        return job
    if not job.status.can_become(status):
        return _refuse_status(job, status)
    sent = replace(job.callback, state=CallbackState.SENT, in_doubt=False, attempted_at=None)
    return _end_job(job, now, status, error, sent)


def _owes_callback(job: ExportJob, generation: int | None) -> bool:
    """Return whether the callback is pending, and still that of this generation of the token.

    A job may be reopened and decided again while an attempt for its old token goes on.
    """
    is_pending = job.callback.state is CallbackState.PENDING
    return is_pending and generation in (None, job.token_generation)


# -- the token


def note_token_closed(
    job: ExportJob, now: float, token: TaskToken, error: JobError
) -> ExportJob:
    """Note that this token was found closed, if it still has the job. The work goes on."""
    if not job.is_awaiting_outcome(token):
        return job
    return replace(job, token_closed_at=now, error=error)


def give_up_closed(job: ExportJob, now: float, grace_seconds: float) -> ExportJob:
    """Decide that the job failed, because its token was closed so long ago."""
    if job.token_closed_at is None or now - job.token_closed_at < grace_seconds:
        return job
    assert job.error is not None  # noted together with the time
    return give_up_job(job, now, job.error)


def attach_token(job: ExportJob, _now: float, token: TaskToken) -> ExportJob | HoldfastError:
    """Give the job to another execution, unless it has or had that token.

    The message of a superseded execution may be delivered again, and must not get it back. A
    job that failed because its token was closed is DOWNLOADING again, with its counters; if
    all tasks are counted, its outcome is decided anew.
    """
    if job.has_seen(token):
        return job
    if job.is_decided and not job.can_reopen:
        return JobClosed(f"{_describe_state(job)}: it accepts no other token")
    status = JobStatus.DOWNLOADING if job.can_reopen else job.status
    return replace(
        job,
        state=replace(job.state, status=status),
        task_token=token,
        token_generation=job.token_generation + 1,
        seen_tokens=job.seen_tokens | {token.mark},
        callback=NO_CALLBACK,
        error=None,
        completed_at=None,
        token_closed_at=None,
    )


# -- texts


def _describe_state(job: ExportJob) -> str:
    is_sending = job.is_decided and not job.terminal
    state = "its outcome is decided" if is_sending else str(job.status)
    return f"job {shorten_name(job.job_id)}: {state}"


def build_not_found_error(job_id: str) -> JobNotFound:
    """Return the error for a job that does not exist."""
    return JobNotFound(f"job {shorten_name(job_id)} does not exist")


def shorten_name(name: str) -> str:
    """Return the name quoted. It is cut if it is longer than any id of a job."""
    return repr(name if len(name) <= 128 else f"{name[:128]}…")
