"""Each change of a job's row as a value: what it sets, and its condition.

Every change sets `updatedAt`. Only `record_progress` and the counting of results set
`lastProgressAt`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.adapters.aws.dynamodb import conditions
from holdfast.adapters.aws.dynamodb.items import row_from_error
from holdfast.jobs.model import JobError, JobState, JobStatus, TaskToken


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """An update expression with its condition and values."""

    update: str
    condition: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WriteTime:
    """The time of a change, and when a row that ends with it may expire."""

    now: str
    ttl: int | None = None


def move_job(
    status: JobStatus, error: JobError | None, counters: JobState | None, at: WriteTime
) -> JobUpdate | None:
    """Build the change to a status, or return None if no step leads there."""
    if status not in conditions.STEPS:
        return None
    values = {":status": status.value, ":error": row_from_error(error), **_bind_times(at)}
    update = f"SET #status = :status, #updatedAt = :now{_set_if_given(error, 'error')}"
    if status.terminal:
        # No execution waits for this job, so no callback is owed.
        update += f", {_SET_ENDED}, #outcome = :status{_set_if_given(error, 'outcomeError')}"
        update += _set_ttl(at)
    condition = conditions.STEPS[status]
    if counters is not None:
        condition += f" AND {conditions.SAME_COUNTERS}"
        values |= _bind_counters(counters)
    return JobUpdate(update, condition, values)


_SET_ENDED = "#completedAt = :now, #callbackState = :sent"


def _set_if_given(error: JobError | None, name: str) -> str:
    return f", #{name} = :error" if error is not None else ""


def _set_ttl(at: WriteTime) -> str:
    return ", #ttl = :ttl" if at.ttl is not None else ""


def _bind_times(at: WriteTime) -> dict[str, Any]:
    return {":now": at.now, ":ttl": at.ttl}


def _bind_counters(state: JobState) -> dict[str, Any]:
    return {
        ":total": state.total_tasks,
        ":completed": state.completed_tasks,
        ":failed": state.failed_tasks,
    }


def seal_job(total_tasks: int, at: WriteTime) -> JobUpdate:
    """Build the change that seals the job.

    Results that came before the seal have made remainingTasks negative, so the total is added
    to it.
    """
    return JobUpdate(
        "SET #totalTasks = :total, #sealed = :true, #updatedAt = :now "
        "ADD #remainingTasks :total",
        conditions.UNSEALED,
        {":total": total_tasks, ":now": at.now},
    )


def record_progress(at: WriteTime) -> JobUpdate:
    """Build the change that records progress."""
    return JobUpdate(
        "SET #lastProgressAt = :now, #updatedAt = :now", conditions.ACTIVE_JOB, {":now": at.now}
    )


def attach_token(token: TaskToken, at: WriteTime) -> JobUpdate:
    """Build the change that attaches the token of a new execution."""
    return JobUpdate(
        "SET #taskToken = :token, #updatedAt = :now, #seenTokens = "
        "list_append(if_not_exists(#seenTokens, :none), :marks) ADD #tokenGeneration :one",
        conditions.CAN_ATTACH_TOKEN,
        {
            ":token": token.reveal(),
            ":mark": token.mark,
            ":marks": [token.mark],
            ":none": [],
            ":now": at.now,
        },
    )


# -- the outcome and its callback


def claim_outcome(failed_tasks: int, at: WriteTime) -> JobUpdate:
    """Build the change that decides the outcome of a fully counted job."""
    error = JobError("JobCompletedWithFailures", f"{failed_tasks} tasks failed")
    outcome = _bind_failure(error) if failed_tasks else {":outcome": JobStatus.COMPLETED.value}
    return JobUpdate(
        _SET_DECIDED + (_SET_REASON if failed_tasks else ""),
        conditions.CAN_CLAIM_OUTCOME,
        {**outcome, ":failed": failed_tasks, ":now": at.now},
    )


def give_up_job(error: JobError, at: WriteTime) -> JobUpdate:
    """Build the change that decides a failure before all tasks are counted."""
    return JobUpdate(
        _SET_DECIDED + _SET_REASON,
        conditions.CAN_GIVE_UP,
        {**_bind_failure(error), ":now": at.now},
    )


_SET_DECIDED = (
    "SET #callbackState = :pending, #outcome = :outcome, #callbackAttempts = :zero, "
    "#callbackInDoubt = :false, #updatedAt = :now"
)
_SET_REASON = ", #outcomeError = :reason"


def _bind_failure(error: JobError) -> dict[str, Any]:
    return {":outcome": JobStatus.FAILED.value, ":reason": row_from_error(error)}


def begin_attempt(at: WriteTime, *, before: str) -> JobUpdate:
    """Build the change that begins a callback attempt.

    From now on it is unknown whether the callback was delivered, because this process may
    crash. The previous value is kept in case the response to this write is lost.
    """
    return JobUpdate(
        "SET #callbackDoubtBefore = #callbackInDoubt, #callbackInDoubt = :true, "
        "#callbackAttemptedAt = :now, #updatedAt = :now ADD #callbackAttempts :one",
        conditions.CAN_ATTEMPT_CALLBACK,
        {":now": at.now, ":before": before},
    )


def end_attempt(in_doubt: bool, at: WriteTime) -> JobUpdate:
    """Build the change that ends an unsuccessful callback attempt."""
    return JobUpdate(
        "SET #callbackInDoubt = :doubt, #updatedAt = :now REMOVE #callbackAttemptedAt",
        conditions.CALLBACK_PENDING,
        {":doubt": in_doubt, ":now": at.now},
    )


def settle_job(status: JobStatus, error: JobError | None, at: WriteTime) -> JobUpdate:
    """Build the change that settles the job.

    It removes the token, because no caller may send a callback with it any more.
    """
    removed = "#taskToken, #callbackAttemptedAt" + (", #error" if error is None else "")
    return JobUpdate(
        f"SET #status = :status, #updatedAt = :now, #callbackInDoubt = :false, {_SET_ENDED}"
        f"{_set_if_given(error, 'error')}{_set_ttl(at)} REMOVE {removed}",
        conditions.CALLBACK_PENDING,
        {":status": status.value, ":error": row_from_error(error), **_bind_times(at)},
    )
