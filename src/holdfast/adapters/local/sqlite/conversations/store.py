"""The conversation store in a SQLite file, for all threads and processes of one machine."""

from collections.abc import Collection, Iterator
from pathlib import Path

from holdfast.adapters.local.sqlite.connection import Durability
from holdfast.adapters.local.sqlite.conversations import history, row, staging
from holdfast.adapters.local.sqlite.conversations.schema import CONVERSATIONS
from holdfast.adapters.local.sqlite.database import Database
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
        with self._database.begin_write() as connection:
            return row.insert(connection, conversation)

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Stage a fragment. Return False if it is staged already."""
        with self._database.begin_write() as connection:
            return staging.insert(
                connection, fragment, fragment.key, fragment.staged_at, expires_at
            )

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        """Open the window. Return False if another window is open."""
        with self._database.begin_write(durable=False) as connection:
            current = staging.read_window(connection, window.conversation_id)
            if current and rules.is_blocking(current, window, now, untriggered_before):
                return False
            staging.open_window(connection, window)
            return True

    def mark_triggered(self, window: Window) -> None:
        """Note that the window's trigger is in the queue."""
        with self._database.begin_write(durable=False) as connection:
            staging.mark_triggered(connection, window)

    def window(self, conversation_id: str) -> Window | None:
        """Return the conversation's window, expired or not."""
        with self._database.begin_read() as connection:
            return staging.read_window(connection, conversation_id)

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Close the window if it belongs to this trigger."""
        with self._database.begin_write(durable=False) as connection:
            staging.close_window(connection, conversation_id, trigger_id)

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
        """Extend the lock. Return False if it is lost."""
        with self._database.begin_write(durable=False) as connection:
            return row.renew(connection, grant, now, expires_at)

    def release(self, grant: LockGrant, status: str | None) -> None:
        """Release the lock without a reply. Raises LockLost."""
        with self._database.begin_write(durable=False) as connection:
            stored = row.require_held(connection, grant)
            now = self._clock.time()
            row.update(connection, stored, rules.release_lock(stored.conversation, status, now))

    # -- the batch

    def staged(self, conversation_id: str) -> list[Staged]:
        """Return every staged row of the conversation."""
        with self._database.begin_read() as connection:
            return staging.read_staged(connection, conversation_id)

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Return those of the sids that were answered or parked already."""
        with self._database.begin_read() as connection:
            return history.find_processed(connection, key, sids)

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Write down how far the reply has come. Raises LockLost."""
        durable = isinstance(outbox, SendingReply | SentReply)
        with self._database.begin_write(durable=durable) as connection:
            row.write_outbox(connection, grant, outbox, thread_id, self._clock.time())

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
                history.remove_parked(connection, parked_id, grant.key)
            after, messages = rules.finish_turn(stored.conversation, turn, now)
            row.update(connection, stored, after)
            history.append_messages(connection, stored.number, messages)
            history.mark_processed(connection, grant.key, turn.sids, remember_until)
            history.delete_expired(connection, now)

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        """Delete the staged rows of these sids."""
        with self._database.begin_write(durable=False) as connection:
            staging.delete_staged(connection, conversation_id, sids)

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
                processed = history.find_processed(connection, parked.key, parked.sids)
                staging.delete_staged(connection, parked.key.conversation_id, processed)
                parked = rules.drop_processed(parked, processed)
                if not parked.staged:
                    return
            history.insert_parked(connection, parked)
            history.mark_processed(connection, parked.key, parked.sids, remember_until)
            history.delete_expired(connection, parked.parked_at)

    def parked(self) -> Iterator[ParkedBatch]:
        """Yield all parked batches, the oldest first."""
        # One transaction per row, so that a slow reader does not pin the WAL.
        with self._database.begin_read() as connection:
            ids = history.read_parked_ids(connection)
        for parked_id in ids:
            with self._database.begin_read() as connection:
                parked = history.read_parked(connection, parked_id)
            if parked is not None:  # otherwise it was taken out meanwhile
                yield parked

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Take a parked batch out and return it. Raises ParkedNotFound."""
        with self._database.begin_write() as connection:
            parked = history.remove_parked(connection, parked_id)
            if back_to_stage:
                for staged in rules.restage(parked, now):
                    staging.insert(connection, staged, parked.key, now, expires_at)
                history.unmark_processed(connection, parked.key, parked.sids)
            return parked

    def get(self, key: ConversationKey) -> Conversation | None:
        """Return the conversation, or None if there is none."""
        with self._database.begin_read() as connection:
            stored = row.find(connection, key)
        return stored.conversation if stored else None

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        """Yield all conversations, or those with this id, the latest first."""
        with self._database.begin_read() as connection:
            numbers = row.read_numbers(connection, conversation_id)
        for number in numbers:
            with self._database.begin_read() as connection:
                conversations = row.read_by_number(connection, number)
            yield from conversations

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
        with self._database.begin_read() as connection:
            stored = row.find(connection, key)
            return history.read_page(connection, stored.number, before, limit) if stored else []

    # -- for the sweeper

    def waiting(self) -> Iterator[WaitingConversation]:
        """Yield the conversations that have staged rows."""
        with self._database.begin_read() as connection:
            return iter(staging.read_waiting(connection))

    # -- the store itself

    def close(self) -> None:
        """Close the connections."""
        self._database.close()
