"""The sweeper: whatever went wrong, no staged message is forgotten.

staged longer than the longest wait, no trigger ahead, nobody at work ─▶ a trigger
staged for days ─▶ parked, with the reason, before the store forgets it
"""

from holdfast.conversations import events as cv
from holdfast.conversations.errors import LockLost, PermanentError
from holdfast.conversations.lock import released_on_error
from holdfast.conversations.model import (
    ConversationKey,
    ConversationNotFound,
    LockAcquired,
    LockGrant,
    LockHeld,
    ParkedBatch,
    Staged,
    WaitingConversation,
    parked_id_of,
    redacted_id,
)
from holdfast.conversations.outbox import Outbox
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import ConversationStore
from holdfast.conversations.windows import Queues, WindowOpener
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Events
from holdfast.core.queue.message import new_id

OWNER_SID = "sweeper"
_TOO_LONG = "it was not answered in time"


class Sweeper:
    """Any number may run at once, anywhere."""

    def __init__(
        self,
        store: ConversationStore,
        queues: Queues,
        *,
        terms: ConversationPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        self._store, self._clock = store, clock
        self._terms = terms or ConversationPolicy()
        self._events = events or Events()
        self._windows = WindowOpener(store, queues, self._terms, clock, self._events)

    def sweep(self) -> cv.SweepFinished:
        """One pass over all that is staged. Raises StoreUnavailable, QueueUnavailable."""
        waiting = triggered = parked = 0
        oldest = 0.0
        for one in self._store.waiting():
            age = self._clock.time() - one.oldest_staged_at
            waiting, oldest = waiting + 1, max(oldest, age)
            try:
                if age > self._terms.park_after_seconds:
                    parked += self._park(one)
                elif age > self._terms.max_wait_seconds + self._terms.grace_seconds:
                    triggered += self._trigger(one)
            except (PermanentError, LockLost) as error:  # the others must not wait for this one
                name = redacted_id(one.key.conversation_id)
                self._events.emit(cv.BatchFailed(name, type(error).__name__))
        swept = cv.SweepFinished(waiting, triggered, parked, oldest)
        self._events.emit(swept)
        return swept

    def _trigger(self, waiting: WaitingConversation) -> bool:
        """Through a window: while its trigger is ahead, no second one is sent."""
        conversation = self._store.get(waiting.key)
        if conversation is not None and conversation.locked(self._clock.time()):
            return False
        return self._windows.open(waiting.key, owner_sid=OWNER_SID, delay_seconds=0.0)

    def _park(self, waiting: WaitingConversation) -> int:
        """How many messages. The lock is taken for each part of them: somebody may be
        answering, and whoever takes the lock over must find all of his batch or none."""
        parked = 0
        while (rows := self._park_some(waiting.key)) > 0:
            parked += rows
        return parked

    def _park_some(self, key: ConversationKey) -> int:
        now = self._clock.time()
        answer = self._store.acquire(
            key,
            owner=new_id(),
            trigger_id=OWNER_SID,
            now=now,
            expires_at=now + self._terms.lock_seconds,
        )
        match answer:
            case LockHeld():
                return 0
            case LockAcquired(grant, conversation):
                with released_on_error(self._store.release, grant):
                    return self._put_away(key, grant, conversation.outbox)
            case ConversationNotFound():
                return self._put_away(key, None, None)

    def _put_away(
        self, key: ConversationKey, grant: LockGrant | None, outbox: Outbox | None
    ) -> int:
        staged = self._store.staged(key.conversation_id)
        known = self._store.processed(key, [one.message_sid for one in staged])
        self._store.drop_staged(key.conversation_id, known)
        left = [one for one in staged if one.message_sid not in known]
        begun = [one for one in left if outbox and one.message_sid in outbox.sids]
        rows = begun or left[: self._terms.most_fragments]
        if rows:
            self._put_aside(key, grant, rows, outbox if begun else None)
        elif grant is not None:
            self._store.release(grant, None)
        return len(rows)

    def _put_aside(
        self,
        key: ConversationKey,
        grant: LockGrant | None,
        rows: list[Staged],
        outbox: Outbox | None,
    ) -> None:
        now = self._clock.time()
        sids = [one.message_sid for one in rows]
        parked = ParkedBatch(parked_id_of(key, sids), key, _TOO_LONG, now, tuple(rows), outbox)
        until = now + self._terms.remember_seconds
        self._store.park(grant, parked, remember_until=until)
        name = redacted_id(key.conversation_id)
        self._events.emit(cv.BatchParked(name, len(rows), _TOO_LONG))
