"""Conversations in memory: the promises of the port, on plain values.

Contract tests compare other stores with it, and simulations run conversations on it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from copy import deepcopy
from dataclasses import replace
from threading import RLock
from typing import NamedTuple

from holdfast.conversations import store_rules as rules
from holdfast.conversations.errors import LockLost, ParkedNotFound
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
from holdfast.conversations.outbox import Outbox
from holdfast.conversations.ports import ConversationStore
from holdfast.core.clock import SYSTEM_CLOCK, Clock


class _StagedRow(NamedTuple):
    row: Staged
    key: ConversationKey
    staged_at: float
    expires_at: float


class ConversationMemory:
    """The stored rows. Several MemoryConversations may share one."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.conversations: dict[ConversationKey, Conversation] = {}
        self.owners: dict[ConversationKey, str] = {}
        self.stage: dict[str, dict[str, _StagedRow]] = {}  # by conversation, by sid
        self.windows: dict[str, Window] = {}
        self.messages: defaultdict[ConversationKey, list[HistoryMessage]] = defaultdict(list)
        self.processed: defaultdict[ConversationKey, dict[str, float]] = defaultdict(dict)
        self.parked: dict[str, ParkedBatch] = {}


class MemoryConversations(ConversationStore):
    """A store that exists as long as its memory. It is safe for threads.

    Expired rows stay until `forget_expired` is called, like in a table that removes them at
    any later time.
    """

    def __init__(
        self, memory: ConversationMemory | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._memory = ConversationMemory() if memory is None else memory
        self._clock = clock

    def forget_expired(self, now: float) -> None:
        """Remove every expired row, as a table does sooner or later."""
        with self._memory.lock:
            for sids in self._memory.processed.values():
                for sid in [sid for sid, until in sids.items() if until < now]:
                    del sids[sid]
            for conversation_id, rows in list(self._memory.stage.items()):
                expired = [sid for sid, row in rows.items() if row.expires_at < now]
                self.drop_staged(conversation_id, expired)
            for window in list(self._memory.windows.values()):
                if window.expires_at < now:
                    del self._memory.windows[window.conversation_id]

    # -- staging

    def create(self, conversation: Conversation) -> bool:
        """Store a new conversation."""
        with self._memory.lock:
            if conversation.key in self._memory.conversations:
                return False
            self._memory.conversations[conversation.key] = deepcopy(
                rules.keep_initial_fields(conversation)
            )
            return True

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Store a fragment once."""
        with self._memory.lock:
            rows = self._memory.stage.setdefault(fragment.key.conversation_id, {})
            if fragment.message_sid in rows:
                return False
            row = _StagedRow(fragment, fragment.key, fragment.staged_at, expires_at)
            rows[fragment.message_sid] = row
            return True

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        """Open the window unless another one blocks it."""
        with self._memory.lock:
            existing = self._memory.windows.get(window.conversation_id)
            if existing and rules.is_blocking(existing, window, now, untriggered_before):
                return False
            self._memory.windows[window.conversation_id] = window
            return True

    def mark_triggered(self, window: Window) -> None:
        """Record that the window's trigger is in the queue."""
        with self._memory.lock:
            existing = self._memory.windows.get(window.conversation_id)
            if existing and existing.trigger_id == window.trigger_id:
                triggered = replace(existing, triggered=True)
                self._memory.windows[window.conversation_id] = triggered

    def window(self, conversation_id: str) -> Window | None:
        """Return the window's row."""
        return self._memory.windows.get(conversation_id)

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Close the window of that trigger."""
        with self._memory.lock:
            existing = self._memory.windows.get(conversation_id)
            if existing and existing.trigger_id == trigger_id:
                del self._memory.windows[conversation_id]

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
        with self._memory.lock:
            conversation = self._memory.conversations.get(key)
            if conversation is None:
                return ConversationNotFound()
            if conversation.is_locked(now):
                return LockHeld(conversation.lock_trigger, conversation.lock_expires_at)
            locked = self._put(rules.acquire_lock(conversation, trigger_id, now, expires_at))
            self._memory.owners[key] = owner
            return LockAcquired(LockGrant(key, owner, trigger_id, locked.lock_fence), locked)

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        """Hold the lock longer."""
        with self._memory.lock:
            conversation = self._memory.conversations.get(grant.key)
            if conversation is None or not self._has_lock(grant, conversation):
                return False
            if not conversation.is_locked(now):
                return False
            self._put(replace(conversation, lock_expires_at=expires_at))
            return True

    def release(self, grant: LockGrant, status: str | None) -> None:
        """Release the lock without a reply."""
        with self._memory.lock:
            self._put(rules.release_lock(self._get_locked(grant), status, self._clock.time()))

    # -- the batch

    def staged(self, conversation_id: str) -> list[Staged]:
        """Return every staged row."""
        with self._memory.lock:
            rows = self._memory.stage.get(conversation_id, {})
            return [staged.row for staged in rows.values()]

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Return those sids that count as processed."""
        with self._memory.lock:
            known = self._memory.processed.get(key, {})
            return {sid for sid in sids if sid in known}

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Store the state of the reply."""
        with self._memory.lock:
            self._put(
                rules.note_outbox(
                    self._get_locked(grant), outbox, thread_id, self._clock.time()
                )
            )

    def finish(
        self,
        grant: LockGrant,
        turn: Turn,
        *,
        now: float,
        remember_until: float,
        parked_id: str | None = None,
    ) -> None:
        """Turn a batch and its reply into history."""
        with self._memory.lock:
            after, pair = rules.finish_turn(self._get_locked(grant), turn, now)
            if parked_id is not None:
                self._remove_parked(parked_id, grant.key)
            self._put(after)
            self._memory.messages[grant.key].extend(pair)
            self._mark_processed(grant.key, turn.sids, remember_until)

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        """Remove staged rows."""
        with self._memory.lock:
            rows = self._memory.stage.get(conversation_id, {})
            for sid in sids:
                rows.pop(sid, None)
            if not rows:
                self._memory.stage.pop(conversation_id, None)

    # -- for operators

    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        """Keep a batch for an operator."""
        with self._memory.lock:
            if grant is not None:
                self._put(rules.park_batch(self._get_locked(grant), parked))
            else:
                known = self.processed(parked.key, parked.sids)
                self.drop_staged(parked.key.conversation_id, known)
                parked = rules.drop_processed(parked, known)
                if not parked.staged:
                    return
            self._memory.parked.setdefault(parked.parked_id, parked)
            self._mark_processed(parked.key, parked.sids, remember_until)

    def parked(self) -> Iterator[ParkedBatch]:
        """Return every parked batch, the oldest first."""
        with self._memory.lock:
            batches = list(self._memory.parked.values())
        return iter(sorted(batches, key=lambda parked: parked.parked_at))

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Remove a parked batch and return it."""
        with self._memory.lock:
            parked = self._remove_parked(parked_id)
            if back_to_stage:
                self._stage_again(parked, now, expires_at)
            return parked

    def _remove_parked(self, parked_id: str, key: ConversationKey | None = None) -> ParkedBatch:
        batch = self._memory.parked.get(parked_id)
        if batch is None or key not in (None, batch.key):
            raise ParkedNotFound(f"nothing is parked under {parked_id!r}")
        return self._memory.parked.pop(parked_id)

    def _stage_again(self, parked: ParkedBatch, now: float, expires_at: float) -> None:
        rows = self._memory.stage.setdefault(parked.key.conversation_id, {})
        for row in rules.restage(parked, now):
            rows.setdefault(row.message_sid, _StagedRow(row, parked.key, now, expires_at))
            self._memory.processed[parked.key].pop(row.message_sid, None)

    def get(self, key: ConversationKey) -> Conversation | None:
        """Return the conversation."""
        return self._memory.conversations.get(key)

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        """Return all conversations, or those with that id."""
        with self._memory.lock:
            rows = list(self._memory.conversations.values())
        wanted = (row for row in rows if conversation_id in (None, row.key.conversation_id))
        return iter(sorted(wanted, key=lambda row: row.updated_at, reverse=True))

    def set_status(self, key: ConversationKey, status: str) -> bool:
        """Set the status that an operator chose."""
        with self._memory.lock:
            conversation = self._memory.conversations.get(key)
            if conversation is None:
                return False
            self._put(rules.set_status(conversation, status, self._clock.time()))
            return True

    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        """Return messages of the history."""
        with self._memory.lock:
            messages = self._memory.messages.get(key, [])
            end = len(messages) if before is None else min(before - 1, len(messages))
            return messages[max(0, end - limit) : max(0, end)]

    # -- for the sweeper

    def waiting(self) -> Iterator[WaitingConversation]:
        """Return every conversation that has staged rows."""
        staged_at: defaultdict[ConversationKey, list[float]] = defaultdict(list)
        with self._memory.lock:
            for rows in self._memory.stage.values():
                for row in rows.values():
                    staged_at[row.key].append(row.staged_at)
        return iter(
            [
                WaitingConversation(key, len(times), min(times))
                for key, times in staged_at.items()
            ]
        )

    def close(self) -> None:
        """Do nothing."""

    # -- shared by the methods

    def _get_locked(self, grant: LockGrant) -> Conversation:
        """Return the conversation whose lock the grant holds. Raises LockLost."""
        conversation = self._memory.conversations.get(grant.key)
        if conversation is None or not self._has_lock(grant, conversation):
            raise LockLost("this grant no longer holds the lock of the conversation")
        return conversation

    def _has_lock(self, grant: LockGrant, conversation: Conversation) -> bool:
        return rules.has_lock(grant, conversation, self._memory.owners.get(grant.key, ""))

    def _put(self, conversation: Conversation) -> Conversation:
        self._memory.conversations[conversation.key] = conversation
        return conversation

    def _mark_processed(
        self, key: ConversationKey, sids: Collection[str], until: float
    ) -> None:
        """Remember these messages as processed, and remove their staged rows."""
        self._memory.processed[key].update(dict.fromkeys(sids, until))
        self.drop_staged(key.conversation_id, sids)
