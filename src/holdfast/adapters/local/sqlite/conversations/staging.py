"""Staged rows and windows, within the caller's transaction."""

from collections.abc import Collection
from sqlite3 import Connection

from holdfast.adapters.local.sqlite.conversations.row_values import (
    row_from_staged,
    staged_from_row,
)
from holdfast.adapters.local.sqlite.database import read_rows
from holdfast.conversations.model import ConversationKey, Staged, WaitingConversation, Window

_ADD = """
INSERT INTO stage VALUES (
    :conversation_id, :message_sid, :primary_channel, :body, :received_at, :staged_at, :media,
    :unreadable, :expires_at
) ON CONFLICT DO NOTHING
"""
OF_CONVERSATION = "SELECT * FROM stage WHERE conversation_id = ?"
DROP = "DELETE FROM stage WHERE conversation_id = ? AND message_sid = ?"
# A row of other software may have a text as its time. It counts as an old row.
_WAITING = """
SELECT primary_channel, conversation_id, count(*), min(CAST(staged_at AS REAL)) FROM stage
GROUP BY conversation_id, primary_channel
"""
_WINDOW = "SELECT * FROM windows WHERE conversation_id = ?"
_OPEN = "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?, ?)"
_TRIGGERED = "UPDATE windows SET triggered = 1 WHERE conversation_id = ? AND trigger_id = ?"
_CLOSE = "DELETE FROM windows WHERE conversation_id = ? AND trigger_id = ?"


def insert(
    connection: Connection,
    row: Staged,
    key: ConversationKey,
    staged_at: float,
    expires_at: float,
) -> bool:
    """Stage a message once by its sid. Return False if it is staged already."""
    columns = row_from_staged(row, key, staged_at) | {"expires_at": expires_at}
    return connection.execute(_ADD, columns).rowcount > 0


def read_staged(connection: Connection, conversation_id: str) -> list[Staged]:
    """Return all staged messages of a conversation."""
    rows = read_rows(connection.execute(OF_CONVERSATION, (conversation_id,)))
    return [staged_from_row(row) for row in rows]


def delete_staged(connection: Connection, conversation_id: str, sids: Collection[str]) -> None:
    """Delete the staged rows of these sids."""
    connection.executemany(DROP, [(conversation_id, sid) for sid in sids])


def read_waiting(connection: Connection) -> list[WaitingConversation]:
    """Return the conversations that have staged rows."""
    return [
        WaitingConversation(ConversationKey(channel, conversation_id), count, oldest)
        for channel, conversation_id, count, oldest in connection.execute(_WAITING)
    ]


# -- windows


def read_window(connection: Connection, conversation_id: str) -> Window | None:
    """Return the conversation's window, expired or not, or None if there is none."""
    rows = read_rows(connection.execute(_WINDOW, (conversation_id,)))
    return Window(**{**rows[0], "triggered": bool(rows[0]["triggered"])}) if rows else None


def open_window(connection: Connection, window: Window) -> None:
    """Store the window in place of any other."""
    connection.execute(
        _OPEN,
        (
            window.conversation_id,
            window.trigger_id,
            window.owner_sid,
            window.opened_at,
            window.expires_at,
            window.triggered,
        ),
    )


def mark_triggered(connection: Connection, window: Window) -> None:
    """Note that the window's trigger is in the queue, if the window is still stored."""
    connection.execute(_TRIGGERED, (window.conversation_id, window.trigger_id))


def close_window(connection: Connection, conversation_id: str, trigger_id: str) -> None:
    """Delete the window if it belongs to this trigger."""
    connection.execute(_CLOSE, (conversation_id, trigger_id))
