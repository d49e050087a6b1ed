"""The rows of one conversation, within the caller's transaction."""

from collections.abc import Collection
from dataclasses import dataclass
from sqlite3 import Connection
from typing import Any

from holdfast.adapters.local.sqlite.conversations import statements
from holdfast.adapters.local.sqlite.conversations.row_values import (
    conversation_from_row,
    find_changes,
    parked_from_row,
)
from holdfast.adapters.local.sqlite.database import read_rows
from holdfast.conversations import store_rules as rules
from holdfast.conversations.errors import LockLost, ParkedNotFound
from holdfast.conversations.model import (
    Conversation,
    ConversationKey,
    LockGrant,
    ParkedBatch,
    Status,
    Window,
)

# deleted with each turn; more than a turn adds, so expired rows never pile up
_MAX_DELETES = 100


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation that was read, with the number of its row and the owner of its lock."""

    number: int
    owner: str  # of the lock, not of the conversation
    conversation: Conversation


def find(connection: Connection, key: ConversationKey) -> StoredConversation | None:
    """Return the conversation with this key, or None if there is none."""
    rows = read_rows(
        connection.execute(statements.BY_KEY, (key.conversation_id, key.primary_channel))
    )
    if not rows:
        return None
    return StoredConversation(
        rows[0]["conversation_no"], rows[0]["lock_owner"], conversation_from_row(rows[0])
    )


def require_held(connection: Connection, grant: LockGrant) -> StoredConversation:
    """Return the conversation whose lock this grant holds. Raises LockLost."""
    stored = find(connection, grant.key)
    if stored is None or not rules.has_lock(grant, stored.conversation, stored.owner):
        raise build_lock_lost_error()
    return stored


def bind_grant(grant: LockGrant) -> dict[str, Any]:
    """Return the values of the condition that this grant holds the lock."""
    return {
        "conversation_id": grant.key.conversation_id,
        "primary_channel": grant.key.primary_channel,
        "processing": Status.PROCESSING.value,
        "owner": grant.owner,
        "fence": grant.fence,
    }


def build_lock_lost_error() -> LockLost:
    """Return the error for a grant that no longer holds the lock."""
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


def read_window(connection: Connection, conversation_id: str) -> Window | None:
    """Return the conversation's window, expired or not, or None if there is none."""
    rows = read_rows(connection.execute(statements.WINDOW, (conversation_id,)))
    return Window(**{**rows[0], "triggered": bool(rows[0]["triggered"])}) if rows else None


# -- processed messages


def find_processed(
    connection: Connection, key: ConversationKey, sids: Collection[str]
) -> set[str]:
    """Return those of the sids that were answered or parked already."""
    key_columns = (key.conversation_id, key.primary_channel)
    return {
        sid
        for sid in set(sids)
        if connection.execute(statements.IS_PROCESSED, (*key_columns, sid)).fetchone()
    }


def mark_processed(
    connection: Connection, key: ConversationKey, sids: Collection[str], until: float
) -> None:
    """Mark these messages as processed and remove their staged rows."""
    key_columns = (key.conversation_id, key.primary_channel)
    rows = [(*key_columns, sid, until) for sid in sids]
    connection.executemany(statements.MARK_PROCESSED, rows)
    delete_staged(connection, key.conversation_id, sids)


def delete_staged(connection: Connection, conversation_id: str, sids: Collection[str]) -> None:
    """Delete the staged rows of these sids."""
    connection.executemany(statements.DROP_STAGED, [(conversation_id, sid) for sid in sids])


def delete_expired(connection: Connection, now: float) -> None:
    """Delete a limited number of expired rows, the oldest first."""
    for statement in (statements.DELETE_EXPIRED_PROCESSED, statements.DELETE_EXPIRED_STAGED):
        connection.execute(statement, (now, _MAX_DELETES))


# -- parked batches


def remove_parked(
    connection: Connection, parked_id: str, key: ConversationKey | None = None
) -> ParkedBatch:
    """Remove and return a parked batch, of this conversation if a key is given.

    Raises ParkedNotFound.
    """
    rows = read_rows(connection.execute(statements.PARKED, (parked_id,)))
    batch = parked_from_row(rows[0]) if rows else None
    if batch is None or key not in (None, batch.key):
        raise ParkedNotFound(f"no batch is parked under {parked_id!r}")
    connection.execute(statements.DELETE_PARKED, (parked_id,))
    return batch
