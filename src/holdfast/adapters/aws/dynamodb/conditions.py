"""What must hold for each write, by name. The life of a job row:

    save ─▶ PROCESSING ─▶ DOWNLOADING ─ seal, results ─▶ all counted
                 │             │                            │ CAN_CLAIM_OUTCOME
                 └── CAN_GIVE_UP ─┴──────────▶ callback pending ◀┘
                                                 │ CAN_ATTEMPT_CALLBACK, CALLBACK_PENDING
                                                 ▼
                                       COMPLETED or FAILED, for good

Every attribute is written `#name`: `status`, `error`, `ttl`, `url`, `key` and `size` are
reserved words, and one that is not aliased fails every call (JB-24). DynamoDB refuses names
and values that no expression uses, so `used` picks those that are.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb.expressions import bind_expressions, require_all
from holdfast.jobs.model import CallbackState, JobStatus, TaskStatus

# -- parts

# An update of a row that is not there would make one up, without status (JB-36).
EXISTS = "attribute_exists(#jobId)"
DOWNLOADING = "#status = :downloading"
ACTIVE = "#status IN (:processing, :downloading)"
# The outcome is open. From the moment it is decided, nothing may change what it says.
UNDECIDED = "attribute_not_exists(#callbackState)"
# DynamoDB cannot add up completed and failed tasks in a condition: hence remainingTasks.
ALL_COUNTED = "#sealed = :true AND #remainingTasks = :zero"
# Nobody waits in Step Functions; otherwise the way to the end is through the callback.
NOT_WAITED_FOR = "attribute_not_exists(#taskToken)"

# -- job rows

# The first start message of a job. A second one must not reset counters (JB-14).
NEW_JOB = "attribute_not_exists(#jobId)"
# Results of a job that is being worked on.
CAN_COUNT_RESULTS = require_all(EXISTS, DOWNLOADING, UNDECIDED)
# More tasks, or the seal: listing goes on, before or after work began.
UNSEALED = require_all(EXISTS, ACTIVE, UNDECIDED, "#sealed = :false")
# The last result and the seal are in, and nobody decided before us (JB-02). The number
# failed is what the caller derived the outcome from.
CAN_CLAIM_OUTCOME = require_all(
    EXISTS, DOWNLOADING, ALL_COUNTED, UNDECIDED, "#failedTasks = :failed"
)
# An active job, whatever its tasks do; not one whose outcome is being delivered.
CAN_GIVE_UP = require_all(EXISTS, ACTIVE, UNDECIDED)
# A job that is not terminal moves, whatever was decided about it.
ACTIVE_JOB = require_all(EXISTS, ACTIVE)
# Delivery is owed, and no other attempt is under way, or it began long ago.
CAN_ATTEMPT_CALLBACK = require_all(
    "#callbackState = :pending",
    "(attribute_not_exists(#callbackAttemptedAt) OR #callbackAttemptedAt <= :before)",
)
# Delivery is owed: one caller settles, and terminal is final (I-JB-4).
CALLBACK_PENDING = "#callbackState = :pending"
# An execution that was started again, with another token (JB-14): one it never had, for
# the message of an execution that was superseded may come again.
CAN_ATTACH_TOKEN = require_all(
    EXISTS,
    ACTIVE,
    UNDECIDED,
    "(attribute_not_exists(#taskToken) OR #taskToken <> :token)",
    "NOT contains(#seenTokens, :mark)",
)
# Steps that a job without callback may take by itself, by where they lead.
STEPS = {
    JobStatus.DOWNLOADING: require_all(EXISTS, "#status = :processing"),
    JobStatus.FAILED: require_all(EXISTS, ACTIVE, UNDECIDED, NOT_WAITED_FOR),
    JobStatus.COMPLETED: require_all(
        EXISTS, DOWNLOADING, ALL_COUNTED, "#failedTasks = :zero", UNDECIDED, NOT_WAITED_FOR
    ),
}
# The caller's view of the counters is still right.
SAME_COUNTERS = (
    "#totalTasks = :total AND #completedTasks = :completed AND #failedTasks = :failed"
)

# -- task rows

# A task that is listed for the first time; listing again leaves it as it is (JB-15).
NEW_TASK = "attribute_not_exists(#taskId)"
# The first result of a task that is known. Any other was counted already (JB-01).
UNCOUNTED = "#status = :task_pending"

_FIXED: dict[str, Any] = {
    ":processing": JobStatus.PROCESSING.value,
    ":downloading": JobStatus.DOWNLOADING.value,
    ":pending": CallbackState.PENDING.value,
    ":sent": CallbackState.SENT.value,
    ":task_pending": TaskStatus.PENDING.value,
    ":true": True,
    ":false": False,
    ":zero": 0,
    ":one": 1,
}


def bind_values(values: Mapping[str, Any], *expressions: str) -> dict[str, Any]:
    """The names and values that these expressions mention, as arguments of a call."""
    return bind_expressions({**_FIXED, **values}, *expressions)
