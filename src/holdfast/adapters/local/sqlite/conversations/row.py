"""The row of one conversation and its lock, within the caller's transaction."""

from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

from holdfast.adapters.local.sqlite.conversations.row_values import (
    conversation_from_row,
    dump_outbox,
    find_changes,
    row_from_conversation,
)
from holdfast.adapters.local.sqlite.database import read_rows
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
# This grant holds the lock. The condition is in SQL, so that the most frequent writes of a turn
# need not read the conversation with its recent messages first.
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
class StoredConversation:
    """A conversation that was read, with the number of its row and the owner of its lock."""

    number: int
    owner: str  # of the lock, not of the conversation
    conversation: Conversation


def insert(connection: Connection, conversation: Conversation) -> bool:
    """Store a new conversation. Return False if it exists, which leaves it unchanged."""
    return connection.execute(_ADD, row_from_conversation(conversation)).rowcount > 0


def find(connection: Connection, key: ConversationKey) -> StoredConversation | None:
    """Return the conversation with this key, or None if there is none."""
    rows = read_rows(connection.execute(BY_KEY, (key.conversation_id, key.primary_channel)))
    if not rows:
        return None
    return StoredConversation(
        rows[0]["conversation_no"], rows[0]["lock_owner"], conversation_from_row(rows[0])
    )


def find_held(connection: Connection, grant: LockGrant) -> StoredConversation | None:
    """Return the conversation if this grant holds its lock, otherwise None."""
    stored = find(connection, grant.key)
    if stored is None or not rules.has_lock(grant, stored.conversation, stored.owner):
        return None
    return stored


def require_held(connection: Connection, grant: LockGrant) -> StoredConversation:
    """Return the conversation whose lock this grant holds. Raises LockLost."""
    stored = find_held(connection, grant)
    if stored is None:
        raise _build_lock_lost_error()
    return stored


def write_outbox(
    connection: Connection, grant: LockGrant, outbox: Outbox, thread_id: str, now: float
) -> None:
    """Write the outbox and the thread. Raises LockLost."""
    noted = {"outbox": dump_outbox(outbox), "thread_id": thread_id, "now": now}
    if not connection.execute(_NOTE, {**noted, **_values_from_grant(grant)}).rowcount:
        raise _build_lock_lost_error()


def renew(connection: Connection, grant: LockGrant, now: float, expires_at: float) -> bool:
    """Extend the lock. Return False if this grant lost it or it expired."""
    times = {"now": now, "expires_at": expires_at}
    return connection.execute(_RENEW, {**times, **_values_from_grant(grant)}).rowcount > 0


def _values_from_grant(grant: LockGrant) -> dict[str, Any]:
    """Return the values of _LOCK_HELD."""
    return {
        "conversation_id": grant.key.conversation_id,
        "primary_channel": grant.key.primary_channel,
        "processing": Status.PROCESSING.value,
        "owner": grant.owner,
        "fence": grant.fence,
    }


def _build_lock_lost_error() -> LockLost:
    return LockLost("this grant no longer holds the lock of the conversation")


def update(
    connection: Connection,
    stored: StoredConversation,
    after: Conversation,
    owner: str | None = None,
) -> None:
    """Write the columns that changed, and the lock's owner if one is given."""
    changed = find_changes(stored.conversation, after)
    if owner is not None:
        changed["lock_owner"] = owner
    if changed:
        columns = ", ".join(f"{name} = :{name}" for name in changed)
        connection.execute(
            f"UPDATE conversations SET {columns} WHERE conversation_no = :number",  # noqa: S608 - our own names
            {**changed, "number": stored.number},
        )


# -- listings


def read_numbers(connection: Connection, conversation_id: str | None) -> list[int]:
    """Return the row numbers of all conversations, or of those with this id, the
    latest first.
    """
    if conversation_id is None:
        rows = connection.execute(LATEST)
    else:
        rows = connection.execute(OF_ID, (conversation_id,))
    return [number for (number,) in rows]


def read_by_number(connection: Connection, number: int) -> list[Conversation]:
    """Return the conversation with this row number as a list, empty if it is gone."""
    return [
        conversation_from_row(row)
        for row in read_rows(connection.execute(BY_NUMBER, (number,)))
    ]
