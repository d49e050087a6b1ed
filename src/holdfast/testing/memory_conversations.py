"""Conversations in memory: what the port promises, on plain values. Stores are compared
with it, and whole lives of conversations are simulated on it."""

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
    """What is stored. Several MemoryConversations may look at one."""

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
    """A store that lives as long as its memory. Safe for threads.

    What expired stays, as with a table that cleans up in its own time, until somebody calls
    `forget_expired`.
    """

    def __init__(
        self, memory: ConversationMemory | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._memory = ConversationMemory() if memory is None else memory
        self._clock = clock

    def forget_expired(self, now: float) -> None:
        """Remove every row whose time is over, as a table does sooner or later."""
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
        with self._memory.lock:
            if conversation.key in self._memory.conversations:
                return False
            self._memory.conversations[conversation.key] = deepcopy(rules.created(conversation))
            return True

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        with self._memory.lock:
            rows = self._memory.stage.setdefault(fragment.key.conversation_id, {})
            if fragment.message_sid in rows:
                return False
            row = _StagedRow(fragment, fragment.key, fragment.staged_at, expires_at)
            rows[fragment.message_sid] = row
            return True

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        with self._memory.lock:
            found = self._memory.windows.get(window.conversation_id)
            if found and rules.in_the_way(found, window, now, untriggered_before):
                return False
            self._memory.windows[window.conversation_id] = window
            return True

    def mark_triggered(self, window: Window) -> None:
        with self._memory.lock:
            found = self._memory.windows.get(window.conversation_id)
            if found and found.trigger_id == window.trigger_id:
                triggered = replace(found, triggered=True)
                self._memory.windows[window.conversation_id] = triggered

    def window(self, conversation_id: str) -> Window | None:
        return self._memory.windows.get(conversation_id)

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        with self._memory.lock:
            found = self._memory.windows.get(conversation_id)
            if found and found.trigger_id == trigger_id:
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
        with self._memory.lock:
            found = self._memory.conversations.get(key)
            if found is None:
                return ConversationNotFound()
            if found.locked(now):
                return LockHeld(found.lock_trigger, found.lock_expires_at)
            taken = self._put(rules.acquired(found, trigger_id, now, expires_at))
            self._memory.owners[key] = owner
            return LockAcquired(LockGrant(key, owner, trigger_id, taken.lock_fence), taken)

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        with self._memory.lock:
            found = self._memory.conversations.get(grant.key)
            if found is None or not self._holds(grant, found) or not found.locked(now):
                return False
            self._put(replace(found, lock_expires_at=expires_at))
            return True

    def release(self, grant: LockGrant, status: str | None) -> None:
        with self._memory.lock:
            self._put(rules.freed(self._of(grant), status, self._clock.time()))

    # -- the batch

    def staged(self, conversation_id: str) -> list[Staged]:
        with self._memory.lock:
            rows = self._memory.stage.get(conversation_id, {})
            return [staged.row for staged in rows.values()]

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        with self._memory.lock:
            known = self._memory.processed.get(key, {})
            return {sid for sid in sids if sid in known}

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        with self._memory.lock:
            self._put(rules.noted(self._of(grant), outbox, thread_id, self._clock.time()))

    def finish(
        self,
        grant: LockGrant,
        turn: Turn,
        *,
        now: float,
        remember_until: float,
        parked_id: str | None = None,
    ) -> None:
        with self._memory.lock:
            after, pair = rules.finished(self._of(grant), turn, now)
            if parked_id is not None:
                self._take_out(parked_id, grant.key)
            self._put(after)
            self._memory.messages[grant.key].extend(pair)
            self._end(grant.key, turn.sids, remember_until)

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        with self._memory.lock:
            rows = self._memory.stage.get(conversation_id, {})
            for sid in sids:
                rows.pop(sid, None)
            if not rows:
                self._memory.stage.pop(conversation_id, None)

    # -- for people

    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        with self._memory.lock:
            if grant is not None:
                self._put(rules.parked(self._of(grant), parked))
            else:
                known = self.processed(parked.key, parked.sids)
                self.drop_staged(parked.key.conversation_id, known)
                parked = rules.still_open(parked, known)
                if not parked.staged:
                    return
            self._memory.parked.setdefault(parked.parked_id, parked)
            self._end(parked.key, parked.sids, remember_until)

    def parked(self) -> Iterator[ParkedBatch]:
        with self._memory.lock:
            found = list(self._memory.parked.values())
        return iter(sorted(found, key=lambda parked: parked.parked_at))

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        with self._memory.lock:
            parked = self._take_out(parked_id)
            if back_to_stage:
                self._stage_again(parked, now, expires_at)
            return parked

    def _take_out(self, parked_id: str, key: ConversationKey | None = None) -> ParkedBatch:
        found = self._memory.parked.get(parked_id)
        if found is None or key not in (None, found.key):
            raise ParkedNotFound(f"nothing is parked under {parked_id!r}")
        return self._memory.parked.pop(parked_id)

    def _stage_again(self, parked: ParkedBatch, now: float, expires_at: float) -> None:
        rows = self._memory.stage.setdefault(parked.key.conversation_id, {})
        for row in rules.staged_again(parked, now):
            rows.setdefault(row.message_sid, _StagedRow(row, parked.key, now, expires_at))
            self._memory.processed[parked.key].pop(row.message_sid, None)

    def get(self, key: ConversationKey) -> Conversation | None:
        return self._memory.conversations.get(key)

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        with self._memory.lock:
            every = list(self._memory.conversations.values())
        wanted = (one for one in every if conversation_id in (None, one.key.conversation_id))
        return iter(sorted(wanted, key=lambda one: one.updated_at, reverse=True))

    def set_status(self, key: ConversationKey, status: str) -> bool:
        with self._memory.lock:
            found = self._memory.conversations.get(key)
            if found is None:
                return False
            self._put(rules.told(found, status, self._clock.time()))
            return True

    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        with self._memory.lock:
            messages = self._memory.messages.get(key, [])
            end = len(messages) if before is None else min(before - 1, len(messages))
            return messages[max(0, end - limit) : max(0, end)]

    # -- for the sweeper

    def waiting(self) -> Iterator[WaitingConversation]:
        found: defaultdict[ConversationKey, list[float]] = defaultdict(list)
        with self._memory.lock:
            for rows in self._memory.stage.values():
                for row in rows.values():
                    found[row.key].append(row.staged_at)
        return iter(
            [WaitingConversation(key, len(times), min(times)) for key, times in found.items()]
        )

    def close(self) -> None:
        pass

    # -- what the methods share

    def _of(self, grant: LockGrant) -> Conversation:
        """The conversation whose lock this is. Raises LockLost."""
        found = self._memory.conversations.get(grant.key)
        if found is None or not self._holds(grant, found):
            raise LockLost("somebody else has the lock of this conversation by now")
        return found

    def _holds(self, grant: LockGrant, found: Conversation) -> bool:
        return rules.holds(grant, found, self._memory.owners.get(grant.key, ""))

    def _put(self, conversation: Conversation) -> Conversation:
        self._memory.conversations[conversation.key] = conversation
        return conversation

    def _end(self, key: ConversationKey, sids: Collection[str], until: float) -> None:
        """These messages are done with."""
        self._memory.processed[key].update(dict.fromkeys(sids, until))
        self.drop_staged(key.conversation_id, sids)
