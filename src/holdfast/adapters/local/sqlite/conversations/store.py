"""Conversations in a SQLite file: safe for all threads and processes of one machine."""

from collections.abc import Collection, Iterator
from pathlib import Path

from holdfast.adapters.local.sqlite.connection import Durability
from holdfast.adapters.local.sqlite.conversations import history as done
from holdfast.adapters.local.sqlite.conversations import row as one
from holdfast.adapters.local.sqlite.conversations import staging as stage
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
    """`durability="power"`: what returned survives a power cut; "process": a crash of this
    process. Locks, windows and a reply that is not being sent need not survive one: without
    them the batch is answered anew. They are on the disk with the next write that must be,
    at the latest before anything is sent.
    `busy_seconds`: how long to wait for others before StoreUnavailable. `clock`: for
    `updated_at` where the caller gives no time.

    Raises ConfigError when the path cannot be used.
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
        with self._database.writing() as connection:
            return one.add(connection, conversation)

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        with self._database.writing() as connection:
            return stage.add(connection, fragment, fragment.key, fragment.staged_at, expires_at)

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        with self._database.writing(lasting=False) as connection:
            found = stage.window(connection, window.conversation_id)
            if found and rules.in_the_way(found, window, now, untriggered_before):
                return False
            stage.open_window(connection, window)
            return True

    def mark_triggered(self, window: Window) -> None:
        with self._database.writing(lasting=False) as connection:
            stage.mark_triggered(connection, window)

    def window(self, conversation_id: str) -> Window | None:
        with self._database.reading() as connection:
            return stage.window(connection, conversation_id)

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        with self._database.writing(lasting=False) as connection:
            stage.close_window(connection, conversation_id, trigger_id)

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
        with self._database.writing(lasting=False) as connection:
            found = one.find(connection, key)
            if found is None:
                return ConversationNotFound()
            known = found.conversation
            if known.locked(now):
                return LockHeld(known.lock_trigger, known.lock_expires_at)
            taken = rules.acquired(known, trigger_id, now, expires_at)
            one.write(connection, found, taken, owner)
        return LockAcquired(LockGrant(key, owner, trigger_id, taken.lock_fence), taken)

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        with self._database.writing(lasting=False) as connection:
            return one.renew(connection, grant, now, expires_at)

    def release(self, grant: LockGrant, status: str | None) -> None:
        with self._database.writing(lasting=False) as connection:
            found = one.held_or_lost(connection, grant)
            now = self._clock.time()
            one.write(connection, found, rules.freed(found.conversation, status, now))

    # -- the batch

    def staged(self, conversation_id: str) -> list[Staged]:
        with self._database.reading() as connection:
            return stage.of(connection, conversation_id)

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        with self._database.reading() as connection:
            return done.known(connection, key, sids)

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        lasting = isinstance(outbox, SendingReply | SentReply)
        with self._database.writing(lasting=lasting) as connection:
            one.note(connection, grant, outbox, thread_id, self._clock.time())

    def finish(
        self,
        grant: LockGrant,
        turn: Turn,
        *,
        now: float,
        remember_until: float,
        parked_id: str | None = None,
    ) -> None:
        with self._database.writing() as connection:
            found = one.held_or_lost(connection, grant)
            if parked_id is not None:
                done.take_out(connection, parked_id, grant.key)
            after, pair = rules.finished(found.conversation, turn, now)
            one.write(connection, found, after)
            done.tell(connection, found.number, pair)
            done.end(connection, grant.key, turn.sids, remember_until)
            done.forget(connection, now)

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        with self._database.writing(lasting=False) as connection:
            stage.drop(connection, conversation_id, sids)

    # -- for people

    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        with self._database.writing() as connection:
            if grant is not None:
                found = one.held_or_lost(connection, grant)
                after = rules.parked(found.conversation, parked)
                one.write(connection, found, after)
            else:
                known = done.known(connection, parked.key, parked.sids)
                stage.drop(connection, parked.key.conversation_id, known)
                parked = rules.still_open(parked, known)
                if not parked.staged:
                    return
            done.park(connection, parked)
            done.end(connection, parked.key, parked.sids, remember_until)
            done.forget(connection, parked.parked_at)

    def parked(self) -> Iterator[ParkedBatch]:
        # One by one, each in a transaction of its own: who is slow to read keeps no log.
        with self._database.reading() as connection:
            ids = done.parked_ids(connection)
        for parked_id in ids:
            with self._database.reading() as connection:
                parked = done.parked(connection, parked_id)
            if parked is not None:  # else it was taken out meanwhile
                yield parked

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        with self._database.writing() as connection:
            parked = done.take_out(connection, parked_id)
            if back_to_stage:
                for row in rules.staged_again(parked, now):
                    stage.add(connection, row, parked.key, now, expires_at)
                done.not_done(connection, parked.key, parked.sids)
            return parked

    def get(self, key: ConversationKey) -> Conversation | None:
        with self._database.reading() as connection:
            found = one.find(connection, key)
        return found.conversation if found else None

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        with self._database.reading() as connection:
            numbers = one.numbers(connection, conversation_id)
        for number in numbers:
            with self._database.reading() as connection:
                found = one.numbered(connection, number)
            yield from found

    def set_status(self, key: ConversationKey, status: str) -> bool:
        with self._database.writing() as connection:
            found = one.find(connection, key)
            if found is None:
                return False
            told = rules.told(found.conversation, status, self._clock.time())
            one.write(connection, found, told)
            return True

    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        with self._database.reading() as connection:
            found = one.find(connection, key)
            return done.page(connection, found.number, before, limit) if found else []

    # -- for the sweeper

    def waiting(self) -> Iterator[WaitingConversation]:
        with self._database.reading() as connection:
            return iter(stage.waiting(connection))

    # -- the store itself

    def close(self) -> None:
        self._database.close()
