"""What is done with: the history, processed messages, parked batches; and forgetting.

Within somebody's transaction.
"""

from collections.abc import Collection, Iterable
from sqlite3 import Connection

from holdfast.adapters.local.sqlite.conversations import staging as stage
from holdfast.adapters.local.sqlite.conversations.row_values import (
    message_of,
    parked_of,
    row_of_message,
    row_of_parked,
)
from holdfast.adapters.local.sqlite.jobs.rows import named
from holdfast.conversations.errors import ParkedNotFound
from holdfast.conversations.model import ConversationKey, HistoryMessage, ParkedBatch

_TELL = """
INSERT INTO messages VALUES (
    :conversation_no, :seq, :role, :body, :at, :message_sid, :details
)
"""
PAGE = """
SELECT * FROM messages WHERE conversation_no = ? AND seq < ? ORDER BY seq DESC LIMIT ?
"""
_LAST = 2**63 - 1
KNOWN = """
SELECT 1 FROM processed
WHERE conversation_id = ? AND primary_channel = ? AND message_sid = ?
"""
_REMEMBER = "INSERT OR REPLACE INTO processed VALUES (?, ?, ?, ?)"
_NOT_DONE = """
DELETE FROM processed
WHERE conversation_id = ? AND primary_channel = ? AND message_sid = ?
"""
_PARK = """
INSERT INTO parked VALUES (
    :parked_id, :conversation_id, :primary_channel, :reason, :parked_at, :staged, :outbox
) ON CONFLICT DO NOTHING
"""

_AT_ONCE = 100  # rows forgotten with a turn: more than a turn adds, so they never pile up
FORGET_PROCESSED = """
DELETE FROM processed WHERE (conversation_id, primary_channel, message_sid) IN (
    SELECT conversation_id, primary_channel, message_sid FROM processed
    WHERE expires_at < ? ORDER BY expires_at LIMIT ?
)
"""
FORGET_STAGED = """
DELETE FROM stage WHERE rowid IN (
    SELECT rowid FROM stage WHERE expires_at < ? ORDER BY expires_at LIMIT ?
)
"""


# -- the history


def tell(connection: Connection, number: int, messages: Iterable[HistoryMessage]) -> None:
    connection.executemany(_TELL, [row_of_message(number, one) for one in messages])


def page(
    connection: Connection, number: int, before: int | None, limit: int
) -> list[HistoryMessage]:
    last = _LAST if before is None else before
    rows = named(connection.execute(PAGE, (number, last, limit)))
    return [message_of(row) for row in reversed(rows)]


# -- processed messages


def known(connection: Connection, key: ConversationKey, sids: Collection[str]) -> set[str]:
    of_key = (key.conversation_id, key.primary_channel)
    return {sid for sid in set(sids) if connection.execute(KNOWN, (*of_key, sid)).fetchone()}


def end(
    connection: Connection, key: ConversationKey, sids: Collection[str], until: float
) -> None:
    """These messages are done with: remembered, and not staged any more."""
    of_key = (key.conversation_id, key.primary_channel)
    connection.executemany(_REMEMBER, [(*of_key, sid, until) for sid in sids])
    stage.drop(connection, key.conversation_id, sids)


def forget(connection: Connection, now: float) -> None:
    """A bounded number of rows whose time is over, the oldest first."""
    for statement in (FORGET_PROCESSED, FORGET_STAGED):
        connection.execute(statement, (now, _AT_ONCE))


# -- parked batches


def park(connection: Connection, parked: ParkedBatch) -> None:
    """Unless it is there already: the first reason is the one that counts."""
    connection.execute(_PARK, row_of_parked(parked))


def parked_ids(connection: Connection) -> list[str]:
    found = connection.execute("SELECT parked_id FROM parked ORDER BY parked_at")
    return [parked_id for (parked_id,) in found]


def parked(connection: Connection, parked_id: str) -> ParkedBatch | None:
    cursor = connection.execute("SELECT * FROM parked WHERE parked_id = ?", (parked_id,))
    rows = named(cursor)
    return parked_of(rows[0]) if rows else None


def take_out(
    connection: Connection, parked_id: str, key: ConversationKey | None = None
) -> ParkedBatch:
    """Take out what is parked there, in this conversation if one is named. Raises
    ParkedNotFound."""
    found = parked(connection, parked_id)
    if found is None or key not in (None, found.key):
        raise ParkedNotFound(f"nothing is parked under {parked_id!r}")
    connection.execute("DELETE FROM parked WHERE parked_id = ?", (parked_id,))
    return found


def not_done(connection: Connection, key: ConversationKey, sids: Collection[str]) -> None:
    """These messages are to be answered after all."""
    of_key = (key.conversation_id, key.primary_channel)
    connection.executemany(_NOT_DONE, [(*of_key, sid) for sid in sids])
