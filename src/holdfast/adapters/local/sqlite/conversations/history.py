"""The history, processed messages and parked batches, and the deletion of expired rows.

Every function runs within the caller's transaction.
"""

from collections.abc import Collection, Iterable
from sqlite3 import Connection

from holdfast.adapters.local.sqlite.conversations import staging
from holdfast.adapters.local.sqlite.conversations.row_values import (
    message_from_row,
    parked_from_row,
    row_from_message,
    row_from_parked,
)
from holdfast.adapters.local.sqlite.database import read_rows
from holdfast.conversations.errors import ParkedNotFound
from holdfast.conversations.model import ConversationKey, HistoryMessage, ParkedBatch

_INSERT_MESSAGE = """
INSERT INTO messages VALUES (
    :conversation_no, :seq, :role, :body, :at, :message_sid, :details
)
"""
PAGE = """
SELECT * FROM messages WHERE conversation_no = ? AND seq < ? ORDER BY seq DESC LIMIT ?
"""
_MAX_SEQ = 2**63 - 1
IS_PROCESSED = """
SELECT 1 FROM processed
WHERE conversation_id = ? AND primary_channel = ? AND message_sid = ?
"""
_MARK_PROCESSED = "INSERT OR REPLACE INTO processed VALUES (?, ?, ?, ?)"
_UNMARK_PROCESSED = """
DELETE FROM processed
WHERE conversation_id = ? AND primary_channel = ? AND message_sid = ?
"""
_INSERT_PARKED = """
INSERT INTO parked VALUES (
    :parked_id, :conversation_id, :primary_channel, :reason, :parked_at, :staged, :outbox
) ON CONFLICT DO NOTHING
"""

# deleted with each turn; more than a turn adds, so expired rows never pile up
_MAX_DELETES = 100
DELETE_EXPIRED_PROCESSED = """
DELETE FROM processed WHERE (conversation_id, primary_channel, message_sid) IN (
    SELECT conversation_id, primary_channel, message_sid FROM processed
    WHERE expires_at < ? ORDER BY expires_at LIMIT ?
)
"""
DELETE_EXPIRED_STAGED = """
DELETE FROM stage WHERE rowid IN (
    SELECT rowid FROM stage WHERE expires_at < ? ORDER BY expires_at LIMIT ?
)
"""


# -- the history


def append_messages(
    connection: Connection, number: int, messages: Iterable[HistoryMessage]
) -> None:
    """Add messages to the history of the conversation with this number."""
    connection.executemany(
        _INSERT_MESSAGE, [row_from_message(number, message) for message in messages]
    )


def read_page(
    connection: Connection, number: int, before: int | None, limit: int
) -> list[HistoryMessage]:
    """Return up to `limit` messages before `before`, in order."""
    last = _MAX_SEQ if before is None else before
    rows = read_rows(connection.execute(PAGE, (number, last, limit)))
    return [message_from_row(row) for row in reversed(rows)]


# -- processed messages


def find_processed(
    connection: Connection, key: ConversationKey, sids: Collection[str]
) -> set[str]:
    """Return those of the sids that were answered or parked already."""
    key_columns = (key.conversation_id, key.primary_channel)
    return {
        sid
        for sid in set(sids)
        if connection.execute(IS_PROCESSED, (*key_columns, sid)).fetchone()
    }


def mark_processed(
    connection: Connection, key: ConversationKey, sids: Collection[str], until: float
) -> None:
    """Mark these messages as processed and remove their staged rows."""
    key_columns = (key.conversation_id, key.primary_channel)
    connection.executemany(_MARK_PROCESSED, [(*key_columns, sid, until) for sid in sids])
    staging.delete_staged(connection, key.conversation_id, sids)


def delete_expired(connection: Connection, now: float) -> None:
    """Delete a limited number of expired rows, the oldest first."""
    for statement in (DELETE_EXPIRED_PROCESSED, DELETE_EXPIRED_STAGED):
        connection.execute(statement, (now, _MAX_DELETES))


# -- parked batches


def insert_parked(connection: Connection, parked: ParkedBatch) -> None:
    """Store a parked batch unless it is stored already, because the first reason counts."""
    connection.execute(_INSERT_PARKED, row_from_parked(parked))


def read_parked_ids(connection: Connection) -> list[str]:
    """Return the ids of all parked batches, the oldest first."""
    rows = connection.execute("SELECT parked_id FROM parked ORDER BY parked_at")
    return [parked_id for (parked_id,) in rows]


def read_parked(connection: Connection, parked_id: str) -> ParkedBatch | None:
    """Return a parked batch, or None if there is none."""
    cursor = connection.execute("SELECT * FROM parked WHERE parked_id = ?", (parked_id,))
    rows = read_rows(cursor)
    return parked_from_row(rows[0]) if rows else None


def remove_parked(
    connection: Connection, parked_id: str, key: ConversationKey | None = None
) -> ParkedBatch:
    """Remove and return a parked batch, of this conversation if a key is given.

    Raises ParkedNotFound.
    """
    batch = read_parked(connection, parked_id)
    if batch is None or key not in (None, batch.key):
        raise ParkedNotFound(f"no batch is parked under {parked_id!r}")
    connection.execute("DELETE FROM parked WHERE parked_id = ?", (parked_id,))
    return batch


def unmark_processed(
    connection: Connection, key: ConversationKey, sids: Collection[str]
) -> None:
    """Make these messages unprocessed again, so that they are answered."""
    key_columns = (key.conversation_id, key.primary_channel)
    connection.executemany(_UNMARK_PROCESSED, [(*key_columns, sid) for sid in sids])
