"""A conversation store on rows: every call is one transaction that reads and writes rows.

The tables are conversations, messages, stage, windows, processed and parked. `rows` says which
columns they have.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.chat import rows as row_values
from holdfast.chat import store_rules as rules
from holdfast.chat.errors import LockLost, ParkedNotFound
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    ConversationNotFound,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    LockHeld,
    ParkedBatch,
    Staged,
    Status,
    Turn,
    Window,
)
from holdfast.chat.outbox import Outbox, SendingReply, SentReply
from holdfast.chat.ports import ConversationStore
from holdfast.chat.rows import row_from_key
from holdfast.errors import StoreUnavailable
from holdfast.lease.clock import Clock
from holdfast.store.rows import Row
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.rows import RowConnection

_MAX_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation that was read, with the number of its row and the owner of its lock."""

    number: int
    owner: str  # of the lock, not of the conversation
    conversation: Conversation


class RowConversationStore(ConversationStore):
    """A store that only has to read and write rows.

    Locks, windows and a reply that is not being sent need not survive a power cut, because
    without them the batch is answered again. Their writes are not durable: they reach the disk
    with the next durable write, which happens at the latest before anything is sent.

    `clock` gives `updated_at` where the caller passes no time.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    @abstractmethod
    def _delete_expired(self, rows: Any, now: float) -> None:
        """Delete some expired rows, or none, within a transaction that a turn makes anyway."""

    # -- staging

    def create(self, conversation: Conversation) -> bool:
        """Store a new conversation. Return False if it exists already."""
        row = row_values.row_from_conversation(conversation)
        with self._database.begin_write() as rows:
            return rows.insert("conversations", [row]) > 0

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Stage a fragment. Return False if it is staged already."""
        row = row_values.row_from_staged(fragment, fragment.key, fragment.staged_at, expires_at)
        with self._database.begin_write() as rows:
            return rows.insert("stage", [row]) > 0

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        """Open the window. Return False if another window is open."""
        with self._database.begin_write(durable=False) as rows:
            current = _find_window(rows, window.conversation_id)
            if current and rules.is_blocking(current, window, now, untriggered_before):
                return False
            rows.replace("windows", [row_values.row_from_window(window)])
            return True

    def mark_triggered(self, window: Window) -> None:
        """Note that the window's trigger is in the queue, if the window is still stored."""
        where = _match_window(window.conversation_id, window.trigger_id)
        with self._database.begin_write(durable=False) as rows:
            rows.update("windows", [({"triggered": True}, where)])

    def window(self, conversation_id: str) -> Window | None:
        """Return the conversation's window, expired or not."""
        with self._database.begin_read() as rows:
            return _find_window(rows, conversation_id)

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Close the window if it belongs to this trigger."""
        with self._database.begin_write(durable=False) as rows:
            rows.delete("windows", [_match_window(conversation_id, trigger_id)])

    # -- the lock

    def acquire(
        self,
        key: ConversationKey,
        *,
        owner: str,
        trigger_id: str,
        now: float,
        expires_at: float,
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        """Take the lock if it is free or expired."""
        with self._database.begin_write(durable=False) as rows:
            stored = _find(rows, key)
            if stored is None:
                return ConversationNotFound()
            conversation = stored.conversation
            if conversation.is_locked(now):
                return LockHeld(conversation.lock_trigger, conversation.lock_expires_at)
            locked = rules.acquire_lock(conversation, trigger_id, now, expires_at)
            _update(rows, stored, locked, lock_owner=owner)
        return LockAcquired(LockGrant(key, owner, trigger_id, locked.lock_fence), locked)

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        """Extend the lock. Return False if this grant lost it or it expired."""
        where = {**_match_grant(grant), "lock_expires_at >": now}
        with self._database.begin_write(durable=False) as rows:
            change = {"lock_expires_at": expires_at}
            return rows.update("conversations", [(change, where)]) > 0

    def release(self, grant: LockGrant, status: str | None) -> None:
        """Release the lock without a reply. Raises LockLost."""
        with self._database.begin_write(durable=False) as rows:
            stored = _require_held(rows, grant)
            now = self._clock.time()
            _update(rows, stored, rules.release_lock(stored.conversation, status, now))

    # -- the batch

    def staged(self, conversation_id: str) -> list[Staged]:
        """Return every staged row of the conversation."""
        with self._database.begin_read() as rows:
            staged = rows.select("stage", {"conversation_id": conversation_id})
        return [row_values.staged_from_row(row) for row in staged]

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Return those of the sids that were answered or parked already."""
        with self._database.begin_read() as rows:
            return _find_processed(rows, key, sids)

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Write down how far the reply has come. Raises LockLost."""
        noted = {
            "outbox": row_values.row_from_outbox(outbox),
            "thread_id": thread_id,
            "updated_at": self._clock.time(),
        }
        durable = isinstance(outbox, SendingReply | SentReply)
        with self._database.begin_write(durable=durable) as rows:
            if not rows.update("conversations", [(noted, _match_grant(grant))]):
                raise _build_lock_lost_error()

    def finish(
        self,
        grant: LockGrant,
        turn: Turn,
        *,
        now: float,
        remember_until: float,
        parked_id: str | None = None,
    ) -> None:
        """Write the turn and release the lock in one transaction. Raises LockLost."""
        with self._database.begin_write() as rows:
            stored = _require_held(rows, grant)
            if parked_id is not None:
                _remove_parked(rows, parked_id, grant.key)
            after, messages = rules.finish_turn(stored.conversation, turn, now)
            _update(rows, stored, after)
            history = [
                row_values.row_from_history(stored.number, message) for message in messages
            ]
            if rows.insert("messages", history) < len(history):
                raise StoreUnavailable("the history has messages with these numbers already")
            _mark_processed(rows, grant.key, turn.sids, remember_until)
            self._delete_expired(rows, now)

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        """Delete the staged rows of these sids."""
        with self._database.begin_write(durable=False) as rows:
            _delete_staged(rows, conversation_id, sids)

    # -- for operators

    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        """Park the batch, and release the lock if a grant is given."""
        with self._database.begin_write() as rows:
            if grant is not None:
                stored = _require_held(rows, grant)
                _update(rows, stored, rules.park_batch(stored.conversation, parked))
            else:
                processed = _find_processed(rows, parked.key, parked.sids)
                _delete_staged(rows, parked.key.conversation_id, processed)
                parked = rules.drop_processed(parked, processed)
                if not parked.staged:
                    return
            # A batch that is parked already stays as it is, because the first reason counts.
            rows.insert("parked", [row_values.row_from_parked(parked)])
            _mark_processed(rows, parked.key, parked.sids, remember_until)
            self._delete_expired(rows, parked.parked_at)

    def parked(self) -> Iterator[ParkedBatch]:
        """Yield all parked batches, the oldest first."""
        listed = self._list_rows("parked", {}, "parked_id", "parked_at")
        return map(row_values.parked_from_row, listed)

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Take a parked batch out and return it. Raises ParkedNotFound."""
        with self._database.begin_write() as rows:
            parked = _remove_parked(rows, parked_id)
            if back_to_stage:
                staged = [
                    row_values.row_from_staged(message, parked.key, now, expires_at)
                    for message in rules.restage(parked, now)
                ]
                rows.insert("stage", staged)
                rows.delete("processed", _match_sids(parked.key, parked.sids))
            return parked

    def get(self, key: ConversationKey) -> Conversation | None:
        """Return the conversation, or None if there is none."""
        with self._database.begin_read() as rows:
            stored = _find(rows, key)
        return stored.conversation if stored else None

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        """Yield all conversations, or those with this id, the latest first."""
        where = {} if conversation_id is None else {"conversation_id": conversation_id}
        listed = self._list_rows(
            "conversations", where, "conversation_no", "updated_at", descending=True
        )
        return map(row_values.conversation_from_row, listed)

    def _list_rows(
        self, table: str, where: Row, key: str, order_by: str, *, descending: bool = False
    ) -> Iterator[Row]:
        """Yield the rows, each from a transaction of its own.

        A slow reader therefore does not pin the WAL. A row that was deleted meanwhile is left
        out.
        """
        with self._database.begin_read() as rows:
            keys = rows.select(
                table, where, columns=key, order_by=order_by, descending=descending
            )
        for listed in keys:
            with self._database.begin_read() as rows:
                current = rows.select(table, {key: listed[key]})
            yield from current

    def set_status(self, key: ConversationKey, status: str) -> bool:
        """Set the status that an operator chose. Return False if there is no such
        conversation.
        """
        with self._database.begin_write() as rows:
            stored = _find(rows, key)
            if stored is None:
                return False
            now = self._clock.time()
            _update(rows, stored, rules.set_status(stored.conversation, status, now))
            return True

    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        """Return up to `limit` history messages in order."""
        last = _MAX_SEQ if before is None else before
        with self._database.begin_read() as rows:
            stored = _find(rows, key)
            if stored is None:
                return []
            where = {"conversation_no": stored.number, "seq <": last}
            page = rows.select("messages", where, order_by="seq", descending=True, limit=limit)
        return [row_values.message_from_row(row) for row in reversed(page)]


# -- the rows of one conversation, within the caller's transaction


def _find(rows: RowConnection, key: ConversationKey) -> StoredConversation | None:
    for row in rows.select("conversations", row_from_key(key)):
        conversation = row_values.conversation_from_row(row)
        return StoredConversation(row["conversation_no"], row["lock_owner"], conversation)
    return None


def _require_held(rows: RowConnection, grant: LockGrant) -> StoredConversation:
    """Return the conversation whose lock this grant holds. Raises LockLost."""
    stored = _find(rows, grant.key)
    if stored is None or not rules.has_lock(grant, stored.conversation, stored.owner):
        raise _build_lock_lost_error()
    return stored


def _match_grant(grant: LockGrant) -> dict[str, Any]:
    """Return the condition that this grant holds the lock, as `rules.has_lock` states it.

    The most frequent writes of a turn use it, so that they need not read the conversation with
    its recent messages first.
    """
    return {
        **row_from_key(grant.key),
        "status": Status.PROCESSING.value,
        "lock_owner": grant.owner,
        "lock_fence": grant.fence,
    }


def _build_lock_lost_error() -> LockLost:
    return LockLost("this grant no longer holds the lock of the conversation")


def _update(
    rows: RowConnection, stored: StoredConversation, after: Conversation, **owner: str
) -> None:
    """Write the columns that changed, and the lock's owner if one is given."""
    if changes := row_values.find_changes(stored.conversation, after) | owner:
        rows.update("conversations", [(changes, {"conversation_no": stored.number})])


def _find_window(rows: RowConnection, conversation_id: str) -> Window | None:
    for row in rows.select("windows", {"conversation_id": conversation_id}):
        return row_values.window_from_row(row)
    return None


def _match_window(conversation_id: str, trigger_id: str) -> Row:
    return {"conversation_id": conversation_id, "trigger_id": trigger_id}


# -- processed and staged messages


def _match_sids(key: ConversationKey, sids: Collection[str]) -> list[dict[str, Any]]:
    return [{**row_from_key(key), "message_sid": sid} for sid in sids]


def _find_processed(
    rows: RowConnection, key: ConversationKey, sids: Collection[str]
) -> set[str]:
    """Return those of the sids that were answered or parked already."""
    return {
        where["message_sid"]
        for where in _match_sids(key, set(sids))
        if rows.select("processed", where, columns="message_sid")
    }


def _mark_processed(
    rows: RowConnection, key: ConversationKey, sids: Collection[str], until: float
) -> None:
    """Mark these messages as processed and remove their staged rows."""
    marks = [{**where, "expires_at": until} for where in _match_sids(key, sids)]
    rows.replace("processed", marks)
    _delete_staged(rows, key.conversation_id, sids)


def _delete_staged(rows: RowConnection, conversation_id: str, sids: Collection[str]) -> None:
    wheres = [{"conversation_id": conversation_id, "message_sid": sid} for sid in sids]
    rows.delete("stage", wheres)


# -- parked batches


def _remove_parked(
    rows: RowConnection, parked_id: str, key: ConversationKey | None = None
) -> ParkedBatch:
    """Remove and return a parked batch, of this conversation if a key is given.

    Raises ParkedNotFound.
    """
    where = {"parked_id": parked_id}
    for row in rows.select("parked", where):
        batch = row_values.parked_from_row(row)
        if key in (None, batch.key):
            rows.delete("parked", [where])
            return batch
    raise ParkedNotFound(f"no batch is parked under {parked_id!r}")
