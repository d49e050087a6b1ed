"""Named conditions for writes to the job tables.

The life of a job row:

    save ─▶ PROCESSING ─▶ DOWNLOADING ─ seal, results ─▶ all counted
                 │             │                            │ CAN_CLAIM_OUTCOME
                 └── CAN_GIVE_UP ─┴──────────▶ callback pending ◀┘
                                                 │ CAN_ATTEMPT_CALLBACK, CALLBACK_PENDING
                                                 ▼
                                       COMPLETED or FAILED, for good

Every attribute is written `#name`, because `status`, `error`, `ttl`, `url`, `key` and `size`
are reserved words, and one that is not aliased makes every call fail. DynamoDB refuses names
and values that no expression uses, so `bind_values` picks those that are used.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb.expressions import bind_expressions, require_all
from holdfast.jobs.model import CallbackState, JobStatus, TaskStatus

# -- parts

# An update of a missing row would create one without a status.
EXISTS = "attribute_exists(#jobId)"
DOWNLOADING = "#status = :downloading"
ACTIVE = "#status IN (:processing, :downloading)"
# The outcome is not decided. Once it is decided, nothing may change it.
UNDECIDED = "attribute_not_exists(#callbackState)"
# A condition cannot add completed and failed tasks. This is why remainingTasks exists.
ALL_COUNTED = "#sealed = :true AND #remainingTasks = :zero"
# No execution waits in Step Functions. If one does, the job must end through the callback.
NOT_WAITED_FOR = "attribute_not_exists(#taskToken)"

# -- job rows

# The first start message of a job. A second one must not reset the counters.
NEW_JOB = "attribute_not_exists(#jobId)"
# Results of a job that is in progress and undecided.
CAN_COUNT_RESULTS = require_all(EXISTS, DOWNLOADING, UNDECIDED)
# More tasks or the seal may come, before or after work began.
UNSEALED = require_all(EXISTS, ACTIVE, UNDECIDED, "#sealed = :false")
# The last result and the seal are in, and no other caller has decided the outcome. The number
# of failed tasks must be the one that the caller derived the outcome from.
CAN_CLAIM_OUTCOME = require_all(
    EXISTS, DOWNLOADING, ALL_COUNTED, UNDECIDED, "#failedTasks = :failed"
)
# An active job, whatever its tasks do, unless its outcome is being delivered.
CAN_GIVE_UP = require_all(EXISTS, ACTIVE, UNDECIDED)
# A job that is not terminal, whatever was decided about it.
ACTIVE_JOB = require_all(EXISTS, ACTIVE)
# The callback is pending, and no other attempt is running or the last one began long ago.
CAN_ATTEMPT_CALLBACK = require_all(
    "#callbackState = :pending",
    "(attribute_not_exists(#callbackAttemptedAt) OR #callbackAttemptedAt <= :before)",
)
# The callback is pending. Only one caller settles the job, and a terminal status is final.
CALLBACK_PENDING = "#callbackState = :pending"
# An execution was started again with another token. The token must be one the job never had,
# because the message of a superseded execution may be delivered again.
CAN_ATTACH_TOKEN = require_all(
    EXISTS,
    ACTIVE,
    UNDECIDED,
    "(attribute_not_exists(#taskToken) OR #taskToken <> :token)",
    "NOT contains(#seenTokens, :mark)",
)
# Status changes of a job without a callback, by their target.
STEPS = {
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

# -- task rows

# A task that is listed for the first time. Listing it again leaves its row as it is.
NEW_TASK = "attribute_not_exists(#taskId)"
# The first result of a listed task. Any other result was counted already.
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
    """Return the names and values that these expressions mention, as call arguments."""
    return bind_expressions({**_FIXED, **values}, *expressions)
