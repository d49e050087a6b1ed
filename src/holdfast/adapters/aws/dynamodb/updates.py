"""Each change of a job's row as a value: what it sets, and the condition it needs.

Every change sets `updatedAt`. Only `progressed`, and counting, set `lastProgressAt`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.adapters.aws.dynamodb import conditions
from holdfast.adapters.aws.dynamodb.items import row_from_error
from holdfast.jobs.model import JobError, JobState, JobStatus, TaskToken


@dataclass(frozen=True, slots=True)
class JobUpdate:
    update: str
    condition: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WriteTime:
    """When a change is made, and when a row that ends with it may be forgotten."""

    now: str
    ttl: int | None = None


def move_job(
    status: JobStatus, error: JobError | None, counters: JobState | None, at: WriteTime
) -> JobUpdate | None:
    """None: no step leads there."""
    if status not in conditions.STEPS:
        return None
    values = {":status": status.value, ":error": row_from_error(error), **_bind_times(at)}
    update = f"SET #status = :status, #updatedAt = :now{_set_if_given(error, 'error')}"
    if status.terminal:
        # Nobody waited, so nobody is to be told.
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
    """Results that came before have made remainingTasks negative: adding puts it right."""
    return JobUpdate(
        "SET #totalTasks = :total, #sealed = :true, #updatedAt = :now "
        "ADD #remainingTasks :total",
        conditions.UNSEALED,
        {":total": total_tasks, ":now": at.now},
    )


def record_progress(at: WriteTime) -> JobUpdate:
    return JobUpdate(
        "SET #lastProgressAt = :now, #updatedAt = :now", conditions.ACTIVE_JOB, {":now": at.now}
    )


def attach_token(token: TaskToken, at: WriteTime) -> JobUpdate:
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
    error = JobError("JobCompletedWithFailures", f"{failed_tasks} tasks failed")
    outcome = _bind_failure(error) if failed_tasks else {":outcome": JobStatus.COMPLETED.value}
    return JobUpdate(
        _SET_DECIDED + (_SET_REASON if failed_tasks else ""),
        conditions.CAN_CLAIM_OUTCOME,
        {**outcome, ":failed": failed_tasks, ":now": at.now},
    )


def give_up_job(error: JobError, at: WriteTime) -> JobUpdate:
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
    """In doubt from now on: this may be the last that is heard of us. Whether it was in
    doubt before is kept, for the case that our own answer is lost."""
    return JobUpdate(
        "SET #callbackDoubtBefore = #callbackInDoubt, #callbackInDoubt = :true, "
        "#callbackAttemptedAt = :now, #updatedAt = :now ADD #callbackAttempts :one",
        conditions.CAN_ATTEMPT_CALLBACK,
        {":now": at.now, ":before": before},
    )


def end_attempt(in_doubt: bool, at: WriteTime) -> JobUpdate:
    return JobUpdate(
        "SET #callbackInDoubt = :doubt, #updatedAt = :now REMOVE #callbackAttemptedAt",
        conditions.CALLBACK_PENDING,
        {":doubt": in_doubt, ":now": at.now},
    )


def settle_job(status: JobStatus, error: JobError | None, at: WriteTime) -> JobUpdate:
    """The token is forgotten: nobody may answer with it any more (JB-35)."""
    forget = "#taskToken, #callbackAttemptedAt" + (", #error" if error is None else "")
    return JobUpdate(
        f"SET #status = :status, #updatedAt = :now, #callbackInDoubt = :false, {_SET_ENDED}"
        f"{_set_if_given(error, 'error')}{_set_ttl(at)} REMOVE {forget}",
        conditions.CALLBACK_PENDING,
        {":status": status.value, ":error": row_from_error(error), **_bind_times(at)},
    )
