"""What must hold for each write, by name. The life of a conversation's lock:

    FREE ─ acquire ─▶ MINE ─ renew (IN_TIME), note ─▶ MINE ─ finish, park, release ─▶ FREE
                        │ its owner died
                        └─ RAN_OUT ─ acquire ─▶ MINE, of the next owner

Every attribute is written `#name`, so that no reserved word fails a call.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb.chat.sanitize import whole_letters
from holdfast.adapters.aws.dynamodb.expressions import all_of, mentioned
from holdfast.conversations.errors import PermanentError
from holdfast.conversations.model import LockGrant, Status
from holdfast.jobs.errors import InvalidJob

# -- the conversation's row

# The first message of a customer. A second one finds the row, and leaves it.
NEW_CONVERSATION = "attribute_not_exists(#conversation_id)"
# Nobody answers: never answered, answered, failed, parked, or any status of others. The row
# must be there: an update would make up one that has a status and nothing else (MS-12).
FREE = all_of(
    "attribute_exists(#conversation_id)",
    "(attribute_not_exists(#conversation_status) OR #conversation_status <> :processing)",
)
# Somebody answers.
BUSY = "#conversation_status = :processing"
# Somebody answers, and did not come to an end in time; or has a lock without an end, as
# the seed's Lambda writes it, which nobody else would ever break (MS-01).
RAN_OUT = all_of(BUSY, "(attribute_not_exists(#lock_expires_at) OR #lock_expires_at <= :now)")
# The lock is this grant's. The status alone would let in whoever was overtaken (MS-07); the
# fence also whoever made up the same owner twice.
MINE = all_of(BUSY, "#lock_owner = :owner", "#lock_fence = :fence")
# It is, and did not run out: what ran out may be somebody else's by the next breath.
IN_TIME = all_of(MINE, "#lock_expires_at > :now")
# It is, and no person has said meanwhile what the status is to be.
ENDABLE = all_of(MINE, "#previous_status = :previous")

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
OPENABLE = " OR ".join(
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
OF_TRIGGER = "#trigger_id = :trigger"
# The same; or one of the seed's own staging, which names no trigger. To close it too early
# splits a window, not to close it strands whoever comes next.
CLOSABLE = f"({OF_TRIGGER} OR attribute_not_exists(#trigger_id))"

_FIXED: dict[str, Any] = {
    ":processing": Status.PROCESSING.value,
    ":true": True,
    ":false": False,
    ":none": "",
    ":one": 1,
}


def used(values: Mapping[str, Any], *expressions: str) -> dict[str, Any]:
    """The names and values that these expressions mention, as arguments of a call.
    Raises PermanentError for what DynamoDB cannot keep."""
    try:
        return mentioned({**_FIXED, **whole_letters(values)}, *expressions)
    except InvalidJob as error:
        raise PermanentError(f"DynamoDB cannot keep {error}") from None


def of(grant: LockGrant) -> dict[str, Any]:
    """The values of MINE."""
    return {":owner": grant.owner, ":fence": grant.fence}
