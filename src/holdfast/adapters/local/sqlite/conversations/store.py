"""The conversation store in a SQLite file, for all threads and processes of one machine."""

from collections.abc import Collection, Iterator
from dataclasses import astuple
from pathlib import Path

from holdfast.adapters.local.sqlite.connection import Durability
from holdfast.adapters.local.sqlite.conversations import row, statements
from holdfast.adapters.local.sqlite.conversations.row_values import (
    conversation_from_row,
    dump_outbox,
    message_from_row,
    parked_from_row,
    row_from_conversation,
    row_from_message,
    row_from_parked,
    row_from_staged,
    staged_from_row,
)
from holdfast.adapters.local.sqlite.conversations.schema import CONVERSATIONS
from holdfast.adapters.local.sqlite.database import Database, read_rows
from holdfast.conversations import store_rules as rules
from holdfast.conversations.model import (
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
    Turn,
    WaitingConversation,
    Window,
)
from holdfast.conversations.outbox import Outbox, SendingReply, SentReply
from holdfast.conversations.ports import ConversationStore
from holdfast.core.clock import SYSTEM_CLOCK, Clock

_MAX_SEQ = 2**63 - 1


class SQLiteConversations(ConversationStore):
    """Conversations in a SQLite file.

    With `durability="power"`, completed writes survive a power cut; with "process", a crash of
    this process. Locks, windows and a reply that is not being sent need not survive a power
    cut, because without them the batch is answered again. They reach the disk with the next
    durable write, which happens at the latest before anything is sent.

    `busy_seconds` is how long to wait for other processes before StoreUnavailable. `clock`
    gives `updated_at` where the caller passes no time.

    Raises ConfigError if the path cannot be used.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        durability: Durability = "power",
        busy_seconds: float = 10.0,
    ) -> None:
        self._clock = clock
        self._database = Database(Path(path), CONVERSATIONS, durability, busy_seconds)

    def __repr__(self) -> str:
        return f"SQLiteConversations({str(self._database.path)!r})"

    # -- staging

    def create(self, conversation: Conversation) -> bool:
        """Store a new conversation. Return False if it exists already."""
        return (
            self._database.execute(statements.INSERT, row_from_conversation(conversation)) > 0
        )

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Stage a fragment. Return False if it is staged already."""
        columns = row_from_staged(fragment, fragment.key, fragment.staged_at, expires_at)
        return self._database.execute(statements.STAGE, columns) > 0

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        """Open the window. Return False if another window is open."""
        with self._database.begin_write(durable=False) as connection:
            current = row.read_window(connection, window.conversation_id)
            if current and rules.is_blocking(current, window, now, untriggered_before):
                return False
            connection.execute(statements.OPEN_WINDOW, astuple(window))
            return True

    def mark_triggered(self, window: Window) -> None:
        """Note that the window's trigger is in the queue, if the window is still stored."""
        values = (window.conversation_id, window.trigger_id)
        self._database.execute(statements.MARK_TRIGGERED, values, durable=False)

    def window(self, conversation_id: str) -> Window | None:
        """Return the conversation's window, expired or not."""
        with self._database.begin_read() as connection:
            return row.read_window(connection, conversation_id)

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Close the window if it belongs to this trigger."""
        values = (conversation_id, trigger_id)
        self._database.execute(statements.CLOSE_WINDOW, values, durable=False)

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
        with self._database.begin_write(durable=False) as connection:
            stored = row.find(connection, key)
            if stored is None:
                return ConversationNotFound()
            conversation = stored.conversation
            if conversation.is_locked(now):
                return LockHeld(conversation.lock_trigger, conversation.lock_expires_at)
            locked = rules.acquire_lock(conversation, trigger_id, now, expires_at)
            row.update(connection, stored, locked, owner)
        return LockAcquired(LockGrant(key, owner, trigger_id, locked.lock_fence), locked)

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        """Extend the lock. Return False if this grant lost it or it expired."""
        values = {"now": now, "expires_at": expires_at, **row.bind_grant(grant)}
        return self._database.execute(statements.RENEW, values, durable=False) > 0

    def release(self, grant: LockGrant, status: str | None) -> None:
        """Release the lock without a reply. Raises LockLost."""
        with self._database.begin_write(durable=False) as connection:
            stored = row.require_held(connection, grant)
            now = self._clock.time()
            row.update(connection, stored, rules.release_lock(stored.conversation, status, now))

    # -- the batch

    def staged(self, conversation_id: str) -> list[Staged]:
        """Return every staged row of the conversation."""
        rows = self._database.query(statements.STAGED, (conversation_id,))
        return [staged_from_row(staged) for staged in rows]

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Return those of the sids that were answered or parked already."""
        with self._database.begin_read() as connection:
            return row.find_processed(connection, key, sids)

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Write down how far the reply has come. Raises LockLost."""
        durable = isinstance(outbox, SendingReply | SentReply)
        noted = {
            "outbox": dump_outbox(outbox),
            "thread_id": thread_id,
            "now": self._clock.time(),
            **row.bind_grant(grant),
        }
        if not self._database.execute(statements.NOTE, noted, durable=durable):
            raise row.build_lock_lost_error()

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
        with self._database.begin_write() as connection:
            stored = row.require_held(connection, grant)
            if parked_id is not None:
                row.remove_parked(connection, parked_id, grant.key)
            after, messages = rules.finish_turn(stored.conversation, turn, now)
            row.update(connection, stored, after)
            message_rows = [row_from_message(stored.number, message) for message in messages]
            connection.executemany(statements.INSERT_MESSAGE, message_rows)
            row.mark_processed(connection, grant.key, turn.sids, remember_until)
            row.delete_expired(connection, now)

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        """Delete the staged rows of these sids."""
        with self._database.begin_write(durable=False) as connection:
            row.delete_staged(connection, conversation_id, sids)

    # -- for operators

    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        """Park the batch, and release the lock if a grant is given."""
        with self._database.begin_write() as connection:
            if grant is not None:
                stored = row.require_held(connection, grant)
                after = rules.park_batch(stored.conversation, parked)
                row.update(connection, stored, after)
            else:
                processed = row.find_processed(connection, parked.key, parked.sids)
                row.delete_staged(connection, parked.key.conversation_id, processed)
                parked = rules.drop_processed(parked, processed)
                if not parked.staged:
                    return
            # A batch that is parked already stays as it is, because the first reason counts.
            connection.execute(statements.INSERT_PARKED, row_from_parked(parked))
            row.mark_processed(connection, parked.key, parked.sids, remember_until)
            row.delete_expired(connection, parked.parked_at)

    def parked(self) -> Iterator[ParkedBatch]:
        """Yield all parked batches, the oldest first."""
        # One transaction per row, so that a slow reader does not pin the WAL. A batch that was
        # taken out meanwhile is left out.
        for listed in self._database.query(statements.PARKED_IDS):
            for parked in self._database.query(statements.PARKED, (listed["parked_id"],)):
                yield parked_from_row(parked)

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Take a parked batch out and return it. Raises ParkedNotFound."""
        with self._database.begin_write() as connection:
            parked = row.remove_parked(connection, parked_id)
            if back_to_stage:
                key = parked.key
                rows = [
                    row_from_staged(staged, key, now, expires_at)
                    for staged in rules.restage(parked, now)
                ]
                sids = [(key.conversation_id, key.primary_channel, sid) for sid in parked.sids]
                connection.executemany(statements.STAGE, rows)
                connection.executemany(statements.UNMARK_PROCESSED, sids)
            return parked

    def get(self, key: ConversationKey) -> Conversation | None:
        """Return the conversation, or None if there is none."""
        with self._database.begin_read() as connection:
            stored = row.find(connection, key)
        return stored.conversation if stored else None

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        """Yield all conversations, or those with this id, the latest first."""
        if conversation_id is None:
            numbers = self._database.query(statements.LATEST)
        else:
            numbers = self._database.query(statements.OF_ID, (conversation_id,))
        for listed in numbers:
            number = listed["conversation_no"]
            for stored in self._database.query(statements.BY_NUMBER, (number,)):
                yield conversation_from_row(stored)

    def set_status(self, key: ConversationKey, status: str) -> bool:
        """Set the status that an operator chose. Return False if there is no such
        conversation.
        """
        with self._database.begin_write() as connection:
            stored = row.find(connection, key)
            if stored is None:
                return False
            changed = rules.set_status(stored.conversation, status, self._clock.time())
            row.update(connection, stored, changed)
            return True

    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        """Return up to `limit` history messages in order."""
        last = _MAX_SEQ if before is None else before
        with self._database.begin_read() as connection:
            stored = row.find(connection, key)
            if stored is None:
                return []
            page = connection.execute(statements.MESSAGES_BEFORE, (stored.number, last, limit))
            return [message_from_row(message) for message in reversed(read_rows(page))]

    # -- for the sweeper

    def waiting(self) -> Iterator[WaitingConversation]:
        """Yield the conversations that have staged rows."""
        return iter(
            [
                WaitingConversation(
                    ConversationKey(waiting["primary_channel"], waiting["conversation_id"]),
                    waiting["messages"],
                    waiting["oldest_at"],
                )
                for waiting in self._database.query(statements.WAITING)
            ]
        )

    # -- the store itself

    def close(self) -> None:
        """Close the connections."""
        self._database.close()
