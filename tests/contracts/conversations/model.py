"""What a store of conversations must remember: the rules, on plain dicts, for one thread.

It uses no rule and no row of a store, so that a store is not compared with itself.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

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
    WaitingConversation,
    Window,
    make_parked_id,
)
from holdfast.chat.outbox import Outbox
from holdfast.testing import ManualClock

MAX_RECENT = 2  # messages that a conversation shows of its history


class ConversationModel:
    """The port's calls, as far as the machine makes them."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._rows: dict[ConversationKey, Conversation] = {}
        self._owners: dict[ConversationKey, str] = {}  # of the locks
        self._history: dict[ConversationKey, list[HistoryMessage]] = {}
        self._staged: dict[tuple[str, str], tuple[ConversationKey, float, Staged]] = {}
        self._processed: set[tuple[ConversationKey, str]] = set()
        self._windows: dict[str, Window] = {}
        self._parked: dict[str, ParkedBatch] = {}

    # -- what is stored

    def get(self, key: ConversationKey) -> Conversation | None:
        return self._rows.get(key)

    def history(self, key: ConversationKey, *, limit: int) -> list[HistoryMessage]:
        return self._history.get(key, [])[-limit:]

    def staged(self, conversation_id: str) -> list[Staged]:
        return [row for (of, _), (_, _, row) in self._staged.items() if of == conversation_id]

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        return {sid for sid in sids if (key, sid) in self._processed}

    def window(self, conversation_id: str) -> Window | None:
        return self._windows.get(conversation_id)

    def parked(self) -> list[ParkedBatch]:
        return list(self._parked.values())

    def waiting(self) -> list[WaitingConversation]:
        times: dict[ConversationKey, list[float]] = {}
        for key, staged_at, _ in self._staged.values():
            times.setdefault(key, []).append(staged_at)
        return [WaitingConversation(key, len(at), min(at)) for key, at in times.items()]

    # -- staging: the first row of an id stays

    def create(self, conversation: Conversation) -> bool:
        is_new = conversation.key not in self._rows
        self._rows.setdefault(conversation.key, conversation)
        return is_new

    def stage(self, row: Fragment, *, expires_at: float) -> bool:
        return self._stage(row.key, row.staged_at, row)

    def _stage(self, key: ConversationKey, staged_at: float, row: Staged) -> bool:
        place = key.conversation_id, row.message_sid
        is_new = place not in self._staged
        self._staged.setdefault(place, (key, staged_at, row))
        return is_new

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        for sid in sids:
            self._staged.pop((conversation_id, sid), None)

    # -- windows: one that is open blocks another, unless its opener never sent the trigger

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        current = self._windows.get(window.conversation_id)
        if current is not None and current.expires_at >= now:
            is_given_up = current.opened_at < untriggered_before
            is_own = current.owner_sid == window.owner_sid
            if current.triggered or not (is_given_up or is_own):
                return False
        self._windows[window.conversation_id] = window
        return True

    def mark_triggered(self, window: Window) -> None:
        if self._has_window(window.conversation_id, window.trigger_id):
            current = self._windows[window.conversation_id]
            self._windows[window.conversation_id] = replace(current, triggered=True)

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        if self._has_window(conversation_id, trigger_id):
            del self._windows[conversation_id]

    def _has_window(self, conversation_id: str, trigger_id: str) -> bool:
        current = self._windows.get(conversation_id)
        return current is not None and current.trigger_id == trigger_id

    # -- the lock: only the newest grant holds it, and only until it is released

    def acquire(
        self,
        key: ConversationKey,
        *,
        owner: str,
        trigger_id: str,
        now: float,
        expires_at: float,
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        if (row := self._rows.get(key)) is None:
            return ConversationNotFound()
        was_locked = row.status == Status.PROCESSING
        if was_locked and row.lock_expires_at > now:
            return LockHeld(row.lock_trigger, row.lock_expires_at)
        self._rows[key] = locked = replace(
            row,
            status=Status.PROCESSING.value,
            previous_status=row.previous_status if was_locked else row.status,
            lock_trigger=trigger_id,
            lock_expires_at=expires_at,
            lock_fence=row.lock_fence + 1,
            updated_at=now,
        )
        self._owners[key] = owner
        return LockAcquired(LockGrant(key, owner, trigger_id, locked.lock_fence), locked)

    def _holds(self, grant: LockGrant) -> bool:
        row = self._rows.get(grant.key)
        return (
            row is not None
            and row.status == Status.PROCESSING
            and (self._owners[grant.key], row.lock_fence) == (grant.owner, grant.fence)
        )

    def _require(self, grant: LockGrant) -> None:
        if not self._holds(grant):
            raise LockLost("the model")

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        if not self._holds(grant) or self._rows[grant.key].lock_expires_at <= now:
            return False
        self._change(grant.key, lock_expires_at=expires_at)
        return True

    def release(self, grant: LockGrant, status: str | None) -> None:
        self._require(grant)
        self._release(grant.key, status, self._clock.time())

    def _release(self, key: ConversationKey, status: str | None, now: float) -> None:
        """Give the lock back. A conversation that is with a person stays with that person."""
        before = self._rows[key].previous_status
        keeps = status is None or before == Status.WITH_PERSON
        self._change(
            key,
            status=before if keeps else str(status),
            previous_status="",
            lock_trigger="",
            lock_expires_at=0.0,
            updated_at=now,
        )

    def _change(self, key: ConversationKey, **fields: Any) -> None:
        self._rows[key] = replace(self._rows[key], **fields)

    def set_status(self, key: ConversationKey, status: str) -> bool:
        if key not in self._rows:
            return False
        is_locked = self._rows[key].status == Status.PROCESSING
        name = "previous_status" if is_locked else "status"
        self._change(key, updated_at=self._clock.time(), **{name: str(status)})
        return True

    # -- a batch is answered or parked by the holder of the lock, and never twice

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        self._require(grant)
        now = self._clock.time()
        self._change(grant.key, outbox=outbox, thread_id=thread_id, updated_at=now)

    def finish(
        self,
        grant: LockGrant,
        turn: Turn,
        *,
        now: float,
        remember_until: float,
        parked_id: str | None = None,
    ) -> None:
        self._require(grant)
        if parked_id is not None:
            if parked_id not in self._parked or self._parked[parked_id].key != grant.key:
                raise ParkedNotFound("the model")
            del self._parked[parked_id]
        row, history = self._rows[grant.key], self._history.setdefault(grant.key, [])
        for message in (turn.user, turn.assistant):
            history.append(replace(message, seq=len(history) + 1))
        self._change(
            grant.key,
            messages=tuple(history[-MAX_RECENT:]),
            message_count=len(history),
            thread_id=turn.thread_id,
            thread_mark=turn.thread_mark,
            last_assistant_message_sid=turn.assistant.message_sid,
            prompt_tokens=row.prompt_tokens + turn.prompt_tokens,
            completion_tokens=row.completion_tokens + turn.completion_tokens,
            outbox=None,
        )
        self._release(grant.key, Status.REPLY_SENT, now)
        self._end_messages(grant.key, turn.sids)

    def park(
        self, grant: LockGrant | None, batch: ParkedBatch, *, remember_until: float
    ) -> None:
        if grant is not None:
            self._require(grant)
            self._change(grant.key, outbox=None)
            self._release(grant.key, Status.PARKED, batch.parked_at)
        else:
            known = self.processed(batch.key, batch.sids)
            self.drop_staged(batch.key.conversation_id, known)
            left = tuple(row for row in batch.staged if row.message_sid not in known)
            left_id = make_parked_id(batch.key, (row.message_sid for row in left))
            batch = replace(batch, staged=left, parked_id=left_id)
        if batch.staged:
            self._parked.setdefault(batch.parked_id, batch)
            self._end_messages(batch.key, batch.sids)

    def _end_messages(self, key: ConversationKey, sids: Collection[str]) -> None:
        self._processed |= {(key, sid) for sid in sids}
        self.drop_staged(key.conversation_id, sids)

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        if parked_id not in self._parked:
            raise ParkedNotFound("the model")
        batch = self._parked.pop(parked_id)
        if back_to_stage:
            for row in batch.staged:
                again = replace(row, staged_at=now) if isinstance(row, Fragment) else row
                self._stage(batch.key, now, again)
            self._processed -= {(batch.key, sid) for sid in batch.sids}
        return batch
