"""Each change of a job's row as a value: what it sets, and the condition it needs.

Every change sets `updatedAt`. Only `progressed`, and counting, set `lastProgressAt`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.adapters.aws.dynamodb import conditions as when
from holdfast.adapters.aws.dynamodb.items import error_row
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


def moved(
    status: JobStatus, error: JobError | None, counters: JobState | None, at: WriteTime
) -> JobUpdate | None:
    """None: no step leads there."""
    if status not in when.STEPS:
        return None
    values = {":status": status.value, ":error": error_row(error), **_times(at)}
    update = f"SET #status = :status, #updatedAt = :now{_if_given(error, 'error')}"
    if status.terminal:
        # Nobody waited, so nobody is to be told.
        update += f", {_ENDED}, #outcome = :status{_if_given(error, 'outcomeError')}"
        update += _expiring(at)
    condition = when.STEPS[status]
    if counters is not None:
        condition += f" AND {when.SAME_COUNTERS}"
        values |= _counters(counters)
    return JobUpdate(update, condition, values)


_ENDED = "#completedAt = :now, #callbackState = :sent"


def _if_given(error: JobError | None, name: str) -> str:
    return f", #{name} = :error" if error is not None else ""


def _expiring(at: WriteTime) -> str:
    return ", #ttl = :ttl" if at.ttl is not None else ""


def _times(at: WriteTime) -> dict[str, Any]:
    return {":now": at.now, ":ttl": at.ttl}


def _counters(state: JobState) -> dict[str, Any]:
    return {
        ":total": state.total_tasks,
        ":completed": state.completed_tasks,
        ":failed": state.failed_tasks,
    }


def sealed(total_tasks: int, at: WriteTime) -> JobUpdate:
    """Results that came before have made remainingTasks negative: adding puts it right."""
    return JobUpdate(
        "SET #totalTasks = :total, #sealed = :true, #updatedAt = :now "
        "ADD #remainingTasks :total",
        when.UNSEALED,
        {":total": total_tasks, ":now": at.now},
    )


def progressed(at: WriteTime) -> JobUpdate:
    return JobUpdate(
        "SET #lastProgressAt = :now, #updatedAt = :now", when.WORKED_ON, {":now": at.now}
    )


def retokened(token: TaskToken, at: WriteTime) -> JobUpdate:
    return JobUpdate(
        "SET #taskToken = :token, #updatedAt = :now, #seenTokens = "
        "list_append(if_not_exists(#seenTokens, :none), :marks) ADD #tokenGeneration :one",
        when.RETOKENABLE,
        {
            ":token": token.reveal(),
            ":mark": token.mark,
            ":marks": [token.mark],
            ":none": [],
            ":now": at.now,
        },
    )


# -- the outcome and its callback


def claimed(failed_tasks: int, at: WriteTime) -> JobUpdate:
    error = JobError("JobCompletedWithFailures", f"{failed_tasks} tasks failed")
    outcome = _failure(error) if failed_tasks else {":outcome": JobStatus.COMPLETED.value}
    return JobUpdate(
        _DECIDE + (_BECAUSE if failed_tasks else ""),
        when.CLAIMABLE,
        {**outcome, ":failed": failed_tasks, ":now": at.now},
    )


def given_up(error: JobError, at: WriteTime) -> JobUpdate:
    return JobUpdate(_DECIDE + _BECAUSE, when.GIVEABLE, {**_failure(error), ":now": at.now})


_DECIDE = (
    "SET #callbackState = :pending, #outcome = :outcome, #callbackAttempts = :zero, "
    "#callbackInDoubt = :false, #updatedAt = :now"
)
_BECAUSE = ", #outcomeError = :reason"


def _failure(error: JobError) -> dict[str, Any]:
    return {":outcome": JobStatus.FAILED.value, ":reason": error_row(error)}


def attempted(at: WriteTime, *, before: str) -> JobUpdate:
    """In doubt from now on: this may be the last that is heard of us. Whether it was in
    doubt before is kept, for the case that our own answer is lost."""
    return JobUpdate(
        "SET #callbackDoubtBefore = #callbackInDoubt, #callbackInDoubt = :true, "
        "#callbackAttemptedAt = :now, #updatedAt = :now ADD #callbackAttempts :one",
        when.MAY_SEND,
        {":now": at.now, ":before": before},
    )


def attempt_failed(in_doubt: bool, at: WriteTime) -> JobUpdate:
    return JobUpdate(
        "SET #callbackInDoubt = :doubt, #updatedAt = :now REMOVE #callbackAttemptedAt",
        when.ANSWERABLE,
        {":doubt": in_doubt, ":now": at.now},
    )


def settled(status: JobStatus, error: JobError | None, at: WriteTime) -> JobUpdate:
    """The token is forgotten: nobody may answer with it any more (JB-35)."""
    forget = "#taskToken, #callbackAttemptedAt" + (", #error" if error is None else "")
    return JobUpdate(
        f"SET #status = :status, #updatedAt = :now, #callbackInDoubt = :false, {_ENDED}"
        f"{_if_given(error, 'error')}{_expiring(at)} REMOVE {forget}",
        when.ANSWERABLE,
        {":status": status.value, ":error": error_row(error), **_times(at)},
    )
