"""What must hold for each write, by name. The life of a conversation's lock:

    UNLOCKED ─ acquire ─▶ LOCK_HELD ─ renew (LOCK_HELD_IN_TIME), note ─▶ LOCK_HELD ─ finish, park, release ─▶ UNLOCKED
                        │ its owner died
                        └─ LOCK_EXPIRED ─ acquire ─▶ LOCK_HELD, of the next owner

Every attribute is written `#name`, so that no reserved word fails a call.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb.chat.sanitize import replace_lone_surrogates
from holdfast.adapters.aws.dynamodb.expressions import bind_expressions, require_all
from holdfast.conversations.errors import PermanentError
from holdfast.conversations.model import LockGrant, Status
from holdfast.jobs.errors import InvalidJob

# -- the conversation's row

# The first message of a customer. A second one finds the row, and leaves it.
NEW_CONVERSATION = "attribute_not_exists(#conversation_id)"
# Nobody answers: never answered, answered, failed, parked, or any status of others. The row
# must be there: an update would make up one that has a status and nothing else (MS-12).
UNLOCKED = require_all(
    "attribute_exists(#conversation_id)",
    "(attribute_not_exists(#conversation_status) OR #conversation_status <> :processing)",
)
# Somebody answers.
LOCKED = "#conversation_status = :processing"
# Somebody answers, and did not come to an end in time; or has a lock without an end, as
# the seed's Lambda writes it, which nobody else would ever break (MS-01).
LOCK_EXPIRED = require_all(
    LOCKED, "(attribute_not_exists(#lock_expires_at) OR #lock_expires_at <= :now)"
)
# The lock is this grant's. The status alone would let in whoever was overtaken (MS-07); the
# fence also whoever made up the same owner twice.
LOCK_HELD = require_all(LOCKED, "#lock_owner = :owner", "#lock_fence = :fence")
# It is, and did not run out: what ran out may be somebody else's by the next breath.
LOCK_HELD_IN_TIME = require_all(LOCK_HELD, "#lock_expires_at > :now")
# It is, and no person has said meanwhile what the status is to be.
CAN_RELEASE_LOCK = require_all(LOCK_HELD, "#previous_status = :previous")

# -- the stage, and what is kept of it

# A message that is not staged. A webhook that comes twice leaves the first row (MS-20).
NEW_FRAGMENT = "attribute_not_exists(#message_sid)"
# A number of the history that no message has.
NEW_MESSAGE = "attribute_not_exists(#entry)"
# A batch that is not parked; and one that is, for whoever takes it out.
NEW_PARKED = "attribute_not_exists(#parked_id)"
STILL_PARKED = "attribute_exists(#parked_id)"

# -- the window

# No window, or none that counts. DynamoDB deletes expired rows when it finds the time, so
# they are told by their value (MS-13). A window without trigger is opened again by the same
# message, which is being delivered again, or by anybody when its opener must be dead (MS-14).
CAN_OPEN_WINDOW = " OR ".join(
    (
        "attribute_not_exists(#conversation_id)",
        "#open_until < :now",
        # a row of the seed's own staging
        "(attribute_not_exists(#open_until) AND #expires_at < :now)",
        "(#triggered = :false AND #owner_sid = :sid)",
        "(#triggered = :false AND #opened_at < :before)",
    )
)
# The window of this trigger, and not the next one (MS-15).
SAME_TRIGGER = "#trigger_id = :trigger"
# The same; or one of the seed's own staging, which names no trigger. To close it too early
# splits a window, not to close it strands whoever comes next.
CAN_CLOSE_WINDOW = f"({SAME_TRIGGER} OR attribute_not_exists(#trigger_id))"

_FIXED: dict[str, Any] = {
    ":processing": Status.PROCESSING.value,
    ":true": True,
    ":false": False,
    ":none": "",
    ":one": 1,
}


def bind_values(values: Mapping[str, Any], *expressions: str) -> dict[str, Any]:
    """The names and values that these expressions mention, as arguments of a call.
    Raises PermanentError for what DynamoDB cannot keep."""
    try:
        return bind_expressions({**_FIXED, **replace_lone_surrogates(values)}, *expressions)
    except InvalidJob as error:
        raise PermanentError(f"DynamoDB cannot keep {error}") from None


def values_from_grant(grant: LockGrant) -> dict[str, Any]:
    """The values of LOCK_HELD."""
    return {":owner": grant.owner, ":fence": grant.fence}
