"""Named conditions for writes to the conversation tables.

The life of a conversation's lock:

    UNLOCKED ─ acquire ─▶ LOCK_HELD ─ finish, park, release ─▶ UNLOCKED
                           │ renew (LOCK_HELD_IN_TIME) and note keep it
                           │ the owner crashed
                           └─ LOCK_EXPIRED ─ acquire ─▶ LOCK_HELD, by the next owner

Every attribute is written `#name`, so a reserved word cannot make a call fail.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.chat.dynamodb.items import replace_lone_surrogates
from holdfast.chat.errors import PermanentError
from holdfast.chat.model import LockGrant, Status
from holdfast.errors import InvalidInput
from holdfast.store.dynamodb.expressions import CallBuilder, require_all
from holdfast.store.dynamodb.values import Attributes, encode

# -- the conversation's row

# The first message of a customer. A second message leaves the existing row as it is.
NEW_CONVERSATION = "attribute_not_exists(#conversation_id)"
# No worker is answering. The conversation was never answered, or was answered, failed, was
# parked, or has a status that other software wrote. The row must exist, because an update would
# otherwise create a row that has a status and nothing else.
UNLOCKED = require_all(
    "attribute_exists(#conversation_id)",
    "(attribute_not_exists(#conversation_status) OR #conversation_status <> :processing)",
)
# A worker is answering.
LOCKED = "#conversation_status = :processing"
# The worker that was answering did not finish in time. A lock without an expiry, as the seed's
# Lambda writes it, also counts as expired, because no other process would ever break it.
LOCK_EXPIRED = require_all(
    LOCKED, "(attribute_not_exists(#lock_expires_at) OR #lock_expires_at <= :now)"
)
# This grant holds the lock. With the status alone, a stale holder could write. The fence also
# excludes a worker that uses an owner name a second time.
LOCK_HELD = require_all(LOCKED, "#lock_owner = :owner", "#lock_fence = :fence")
# The same, and the lock has not expired. After its expiry another worker may take it over at
# any moment.
LOCK_HELD_IN_TIME = require_all(LOCK_HELD, "#lock_expires_at > :now")
# This grant holds the lock, and no operator has set another status in the meantime.
CAN_RELEASE_LOCK = require_all(LOCK_HELD, "#previous_status = :previous")

# -- the stage, the history and parked batches

# A message that is not staged yet. A webhook that is delivered twice leaves the first row.
NEW_FRAGMENT = "attribute_not_exists(#message_sid)"
# A sequence number of the history that is not taken.
NEW_MESSAGE = "attribute_not_exists(#entry)"
# A batch that is not parked yet, and one that is still parked and can be taken out.
NEW_PARKED = "attribute_not_exists(#parked_id)"
STILL_PARKED = "attribute_exists(#parked_id)"

# -- the window

# No window is open. DynamoDB deletes expired rows late, so expiry is judged by the value. A
# window whose trigger was not sent may be opened again by the same message, which is then a
# redelivery, or by any message once its opener must have crashed.
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
# The window of this trigger, not a later one.
SAME_TRIGGER = "#trigger_id = :trigger"
# The same, or a window of the seed's own staging, which names no trigger. Closing such a window
# too early splits a batch, but leaving it open would strand the next message.
CAN_CLOSE_WINDOW = f"({SAME_TRIGGER} OR attribute_not_exists(#trigger_id))"


def _encode_values(values: Mapping[str, Any]) -> Attributes:
    """Return the values as DynamoDB's. Raises PermanentError for one that it cannot store."""
    try:
        return encode(replace_lone_surrogates(values))
    except InvalidInput as error:
        raise PermanentError(f"DynamoDB cannot store {error}") from None


CALLS = CallBuilder(
    {
        ":processing": Status.PROCESSING.value,
        ":true": True,
        ":false": False,
        ":none": "",
        ":one": 1,
    },
    _encode_values,
)


def values_from_grant(grant: LockGrant) -> dict[str, Any]:
    """Return the values of LOCK_HELD."""
    return {":owner": grant.owner, ":fence": grant.fence}
