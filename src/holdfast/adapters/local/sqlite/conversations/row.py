"""The row of one conversation, and whose lock it is; within somebody's transaction."""

from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

from holdfast.adapters.local.sqlite.conversations.row_values import (
    conversation_from_row,
    dump_outbox,
    find_changes,
    row_from_conversation,
)
from holdfast.adapters.local.sqlite.jobs.rows import read_rows
from holdfast.conversations import store_rules as rules
from holdfast.conversations.errors import LockLost
from holdfast.conversations.model import Conversation, ConversationKey, LockGrant, Status
from holdfast.conversations.outbox import Outbox

_ADD = """
INSERT INTO conversations (
    conversation_id, primary_channel, channel_config, ai_config, status, created_at, updated_at
) VALUES (
    :conversation_id, :primary_channel, :channel_config, :ai_config, :status, :created_at,
    :updated_at
) ON CONFLICT DO NOTHING
"""
BY_KEY = "SELECT * FROM conversations WHERE conversation_id = ? AND primary_channel = ?"
BY_NUMBER = "SELECT * FROM conversations WHERE conversation_no = ?"
LATEST = "SELECT conversation_no FROM conversations ORDER BY updated_at DESC"
OF_ID = """
SELECT conversation_no FROM conversations WHERE conversation_id = ? ORDER BY updated_at DESC
"""
# The lock is this grant's. Said in SQL, so that what is written most often in a turn does not
# read the conversation with its tail first.
_LOCK_HELD = """
conversation_id = :conversation_id AND primary_channel = :primary_channel
    AND status = :processing AND lock_owner = :owner AND lock_fence = :fence
"""
_NOTE = f"""
UPDATE conversations SET outbox = :outbox, thread_id = :thread_id, updated_at = :now
WHERE {_LOCK_HELD}
"""  # noqa: S608 - our own words
_RENEW = f"""
UPDATE conversations SET lock_expires_at = :expires_at
WHERE {_LOCK_HELD} AND lock_expires_at > :now
"""  # noqa: S608 - our own words


@dataclass(frozen=True, slots=True)
class FoundConversation:
    number: int
    owner: str  # of the lock
    conversation: Conversation


def insert(connection: Connection, conversation: Conversation) -> bool:
    """False: it is there, and stays."""
    return connection.execute(_ADD, row_from_conversation(conversation)).rowcount > 0


def find(connection: Connection, key: ConversationKey) -> FoundConversation | None:
    rows = read_rows(connection.execute(BY_KEY, (key.conversation_id, key.primary_channel)))
    if not rows:
        return None
    return FoundConversation(
        rows[0]["conversation_no"], rows[0]["lock_owner"], conversation_from_row(rows[0])
    )


def find_held(connection: Connection, grant: LockGrant) -> FoundConversation | None:
    """The conversation, if its lock is this grant's."""
    found = find(connection, grant.key)
    if found is None or not rules.has_lock(grant, found.conversation, found.owner):
        return None
    return found


def require_held(connection: Connection, grant: LockGrant) -> FoundConversation:
    """Raises LockLost."""
    found = find_held(connection, grant)
    if found is None:
        raise _build_lock_lost_error()
    return found


def write_outbox(
    connection: Connection, grant: LockGrant, outbox: Outbox, thread_id: str, now: float
) -> None:
    """Raises LockLost."""
    noted = {"outbox": dump_outbox(outbox), "thread_id": thread_id, "now": now}
    if not connection.execute(_NOTE, {**noted, **_values_from_grant(grant)}).rowcount:
        raise _build_lock_lost_error()


def renew(connection: Connection, grant: LockGrant, now: float, expires_at: float) -> bool:
    times = {"now": now, "expires_at": expires_at}
    return connection.execute(_RENEW, {**times, **_values_from_grant(grant)}).rowcount > 0


def _values_from_grant(grant: LockGrant) -> dict[str, Any]:
    """The values of _MINE."""
    return {
        "conversation_id": grant.key.conversation_id,
        "primary_channel": grant.key.primary_channel,
        "processing": Status.PROCESSING.value,
        "owner": grant.owner,
        "fence": grant.fence,
    }


def _build_lock_lost_error() -> LockLost:
    return LockLost("somebody else has the lock of this conversation by now")


def update(
    connection: Connection,
    found: FoundConversation,
    after: Conversation,
    owner: str | None = None,
) -> None:
    changed = find_changes(found.conversation, after)
    if owner is not None:
        changed["lock_owner"] = owner
    if changed:
        columns = ", ".join(f"{name} = :{name}" for name in changed)
        connection.execute(
            f"UPDATE conversations SET {columns} WHERE conversation_no = :number",  # noqa: S608 - our own names
            {**changed, "number": found.number},
        )


# -- listings


def read_numbers(connection: Connection, conversation_id: str | None) -> list[int]:
    """Of all, or of those with that id; the latest first."""
    if conversation_id is None:
        rows = connection.execute(LATEST)
    else:
        rows = connection.execute(OF_ID, (conversation_id,))
    return [number for (number,) in rows]


def read_by_number(connection: Connection, number: int) -> list[Conversation]:
    return [
        conversation_from_row(row)
        for row in read_rows(connection.execute(BY_NUMBER, (number,)))
    ]
