"""Each rule of `holdfast.exports.transitions` as one conditional update of the job's row.

The life of a job row:

    save ─▶ PROCESSING ─▶ DOWNLOADING ─ seal, results ─▶ all counted
                 │             │                            │ claim_outcome
                 └─ give_up_job ─┴──────────▶ callback pending ◀┘
                                                 │ begin_attempt, end_attempt, settle_job
                                                 ▼
                                       COMPLETED or FAILED, for good

A job that failed because its token was closed goes back to DOWNLOADING with another token.

A condition holds for exactly those rows for which its rule changes the job. Every update sets
`updatedAt`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.exports import transitions
from holdfast.exports.dynamodb.items import format_time, row_from_error
from holdfast.exports.model import (
    TOKEN_ERRORS,
    CallbackState,
    JobError,
    JobState,
    JobStatus,
    TaskStatus,
    TaskToken,
)
from holdfast.exports.transitions import Rule
from holdfast.store.dynamodb.expressions import CallBuilder, require_all

CALLS = CallBuilder(
    {
        ":processing": JobStatus.PROCESSING.value,
        ":downloading": JobStatus.DOWNLOADING.value,
        ":pending": CallbackState.PENDING.value,
        ":sent": CallbackState.SENT.value,
        ":failed_status": JobStatus.FAILED.value,
        ":timed_out": TOKEN_ERRORS[0],
        ":invalid": TOKEN_ERRORS[1],
        ":task_pending": TaskStatus.PENDING.value,
        ":true": True,
        ":false": False,
        ":zero": 0,
        ":one": 1,
        ":none": [],
    }
)

# -- parts of conditions

# An update of a missing row would create one without a status.
EXISTS = "attribute_exists(#jobId)"
DOWNLOADING = "#status = :downloading"
ACTIVE = "#status IN (:processing, :downloading)"
# The outcome is not decided. Once it is decided, only reopening the job may change it.
UNDECIDED = "attribute_not_exists(#callbackState)"
# A condition cannot add completed and failed tasks. This is why remainingTasks exists.
ALL_COUNTED = "#sealed = :true AND #remainingTasks = :zero"
# No execution waits in Step Functions. If one does, the job must end through the callback.
NOT_WAITED_FOR = "attribute_not_exists(#taskToken)"

# The first start message of a job. A second one must not reset the counters.
NEW_JOB = "attribute_not_exists(#jobId)"


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """What a write changes in a job's row, and the condition that guards it.

    `sets` are assignments, `clauses` are an ADD or a REMOVE. With `ends`, the job becomes
    terminal.
    """

    condition: str
    sets: str = ""
    clauses: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    ends: bool = False


# -- the status

# By the target of the change. No change leads to PROCESSING.
CAN_MOVE = {
    JobStatus.DOWNLOADING: require_all(EXISTS, "#status = :processing"),
    JobStatus.FAILED: require_all(EXISTS, ACTIVE, UNDECIDED, NOT_WAITED_FOR),
    JobStatus.COMPLETED: require_all(
        EXISTS, DOWNLOADING, ALL_COUNTED, "#failedTasks = :zero", UNDECIDED, NOT_WAITED_FOR
    ),
}
# The counters are still those that the caller read.
SAME_COUNTERS = (
    "#totalTasks = :total AND #completedTasks = :completed AND #failedTasks = :failed"
)


def _move_job(
    _now: float, status: JobStatus, error: JobError | None, counters: JobState | None
) -> JobUpdate | None:
    if status not in CAN_MOVE:
        return None
    condition, sets = CAN_MOVE[status], "#status = :status"
    values: dict[str, Any] = {":status": status.value, ":error": row_from_error(error)}
    if status.terminal:  # no execution waits for this job, so no callback is owed
        sets += ", #outcome = :status" + _set_if_given(error, "error", "outcomeError")
    if counters is not None:
        condition = require_all(condition, SAME_COUNTERS)
        values |= {
            ":total": counters.total_tasks,
            ":completed": counters.completed_tasks,
            ":failed": counters.failed_tasks,
        }
    return JobUpdate(condition, sets, values=values, ends=status.terminal)


def _set_if_given(error: JobError | None, *names: str) -> str:
    return "".join(f", #{name} = :error" for name in names) if error is not None else ""


# -- tasks and results

# More tasks or the seal may come, before or after work began.
UNSEALED = require_all(EXISTS, ACTIVE, UNDECIDED, "#sealed = :false")
# Results of a job that is in progress and undecided.
CAN_COUNT_RESULTS = require_all(EXISTS, DOWNLOADING, UNDECIDED)
# A job that is not terminal, whatever was decided about it.
ACTIVE_JOB = require_all(EXISTS, ACTIVE)


def _seal_job(_now: float, total_tasks: int) -> JobUpdate:
    return JobUpdate(
        UNSEALED,
        "#totalTasks = :total, #sealed = :true",
        "ADD #remainingTasks :total",
        {":total": total_tasks},
    )


def _accept_tasks(_now: float) -> JobUpdate:
    return JobUpdate(UNSEALED)


def _count_results(_now: float, completed: int, failed: int) -> JobUpdate:
    return JobUpdate(
        CAN_COUNT_RESULTS,
        "#lastProgressAt = :now",
        "ADD #completedTasks :completed, #failedTasks :failed, #remainingTasks :fewer",
        {":completed": completed, ":failed": failed, ":fewer": -completed - failed},
    )


def _record_progress(_now: float) -> JobUpdate:
    return JobUpdate(ACTIVE_JOB, "#lastProgressAt = :now")


# -- the outcome and its callback

# The last result and the seal are in, and no other caller has decided the outcome. The number
# of failed tasks must be the one that the caller derived the outcome from.
CAN_CLAIM_OUTCOME = require_all(
    EXISTS, DOWNLOADING, ALL_COUNTED, UNDECIDED, "#failedTasks = :failed"
)
# An active job, whatever its tasks do, unless its outcome is being delivered.
CAN_GIVE_UP = require_all(EXISTS, ACTIVE, UNDECIDED)
# The callback is pending. Only one caller settles the job, and a terminal status is final.
CALLBACK_PENDING = "#callbackState = :pending"
# The same, and no other attempt is running or the last one began long ago.
CAN_ATTEMPT_CALLBACK = require_all(
    CALLBACK_PENDING,
    "(attribute_not_exists(#callbackAttemptedAt) OR #callbackAttemptedAt <= :before)",
)
# The same, and the job has the token to which the callback was sent. A job that was reopened
# meanwhile has another one. The attribute is missing if the job never got a second token.
SAME_GENERATION = "(attribute_not_exists(#tokenGeneration) OR #tokenGeneration = :generation)"
# By the status that was sent. Only a job whose tasks are all counted can have completed.
CAN_SETTLE = {
    JobStatus.FAILED: require_all(CALLBACK_PENDING, ACTIVE),
    JobStatus.COMPLETED: require_all(CALLBACK_PENDING, DOWNLOADING),
}
# The job still has the token that was found closed, and needs it.
CAN_NOTE_TOKEN_CLOSED = require_all(
    EXISTS, ACTIVE, UNDECIDED, "#taskToken = :token", "attribute_not_exists(#tokenClosedAt)"
)
# The token was found closed long ago, and no other one came.
CAN_GIVE_UP_CLOSED = require_all(CAN_GIVE_UP, "#tokenClosedAt <= :before")
# The token must be one the job never had, because the message of a superseded execution may be
# delivered again.
UNSEEN_TOKEN = require_all(
    "(attribute_not_exists(#taskToken) OR #taskToken <> :token)",
    "NOT contains(#seenTokens, :mark)",
)
# An execution was started again with another token.
CAN_ATTACH_TOKEN = require_all(EXISTS, ACTIVE, UNDECIDED, UNSEEN_TOKEN)
# The same, and the job failed only because its token was closed, so no execution knows it.
CAN_REOPEN = require_all(
    EXISTS,
    UNSEEN_TOKEN,
    "((#status = :failed_status AND #error.#code IN (:timed_out, :invalid)) OR "
    "(#callbackState = :pending AND #outcomeError.#code IN (:timed_out, :invalid)))",
)


def _claim_outcome(_now: float, failed_tasks: int) -> JobUpdate:
    status, error = transitions.choose_outcome(failed_tasks)
    return _decide_outcome(CAN_CLAIM_OUTCOME, status, error, {":failed": failed_tasks})


def _give_up_job(_now: float, error: JobError) -> JobUpdate:
    return _decide_outcome(CAN_GIVE_UP, JobStatus.FAILED, error, {})


def _decide_outcome(
    condition: str, status: JobStatus, error: JobError | None, values: Mapping[str, Any]
) -> JobUpdate:
    return JobUpdate(
        condition,
        "#callbackState = :pending, #outcome = :outcome, #callbackAttempts = :zero, "
        "#callbackInDoubt = :false" + _set_if_given(error, "outcomeError"),
        values={":outcome": status.value, ":error": row_from_error(error), **values},
    )


def _begin_attempt(now: float, again_after_seconds: float) -> JobUpdate:
    """Build the update. It keeps the doubt before it, in case its response is lost."""
    return JobUpdate(
        CAN_ATTEMPT_CALLBACK,
        "#callbackDoubtBefore = #callbackInDoubt, #callbackInDoubt = :true, "
        "#callbackAttemptedAt = :now",
        "ADD #callbackAttempts :one",
        {":before": format_time(now - again_after_seconds)},
    )


def _end_attempt(_now: float, in_doubt: bool, generation: int | None) -> JobUpdate:
    return JobUpdate(
        _require_generation(CALLBACK_PENDING, generation),
        "#callbackInDoubt = :doubt",
        "REMOVE #callbackAttemptedAt",
        {":doubt": in_doubt, ":generation": generation},
    )


def _settle_job(
    _now: float, status: JobStatus, error: JobError | None, generation: int | None
) -> JobUpdate:
    return JobUpdate(
        _require_generation(CAN_SETTLE[status], generation),
        "#status = :status, #callbackInDoubt = :false" + _set_if_given(error, "error"),
        "REMOVE #taskToken, #tokenClosedAt, #callbackAttemptedAt"
        + (", #error" if error is None else ""),
        {
            ":status": status.value,
            ":error": row_from_error(error),
            ":generation": generation,
        },
        ends=True,
    )


def _require_generation(condition: str, generation: int | None) -> str:
    return condition if generation is None else require_all(condition, SAME_GENERATION)


# -- the token


def _note_token_closed(_now: float, token: TaskToken, error: JobError) -> JobUpdate:
    return JobUpdate(
        CAN_NOTE_TOKEN_CLOSED,
        "#tokenClosedAt = :now, #error = :error",
        values={":token": token.reveal(), ":error": row_from_error(error)},
    )


def _give_up_closed(now: float, grace_seconds: float) -> JobUpdate:
    update = _decide_outcome(CAN_GIVE_UP_CLOSED, JobStatus.FAILED, None, {})
    values = {**update.values, ":before": format_time(now - grace_seconds)}
    return replace(update, sets=f"{update.sets}, #outcomeError = #error", values=values)


def _attach_token(_now: float, token: TaskToken, can_reopen: bool) -> JobUpdate:
    """Build the update for a job of which the caller has read whether it can be reopened."""
    sets = (
        "#taskToken = :token, "
        "#seenTokens = list_append(if_not_exists(#seenTokens, :none), :marks)"
    )
    clauses = "ADD #tokenGeneration :one REMOVE #tokenClosedAt, #error"
    if can_reopen:
        sets += ", #status = :downloading"
        clauses += (
            ", #completedAt, #ttl, #callbackState, #outcome, #outcomeError, #callbackAttempts, "
            "#callbackInDoubt, #callbackDoubtBefore, #callbackAttemptedAt"
        )
    values = {":token": token.reveal(), ":mark": token.mark, ":marks": [token.mark]}
    return JobUpdate(CAN_REOPEN if can_reopen else CAN_ATTACH_TOKEN, sets, clauses, values)


_UPDATES: dict[Rule, Callable[..., JobUpdate | None]] = {
    transitions.move_job: _move_job,
    transitions.seal_job: _seal_job,
    transitions.accept_tasks: _accept_tasks,
    transitions.count_results: _count_results,
    transitions.record_progress: _record_progress,
    transitions.claim_outcome: _claim_outcome,
    transitions.give_up_job: _give_up_job,
    transitions.begin_attempt: _begin_attempt,
    transitions.end_attempt: _end_attempt,
    transitions.settle_job: _settle_job,
    transitions.note_token_closed: _note_token_closed,
    transitions.give_up_closed: _give_up_closed,
    transitions.attach_token: _attach_token,
}


def build_update(rule: Rule, now: float, *arguments: Any) -> JobUpdate | None:
    """Return the update that does what the rule does, or None if it never changes a job."""
    return _UPDATES[rule](now, *arguments)
