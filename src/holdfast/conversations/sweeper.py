"""The sweeper: after any failure, every staged message is still answered or parked.

staged longer than the maximum wait, no trigger on its way, no lock held ─▶ send a trigger
staged for days ─▶ park it, with the reason, before its row expires
"""

from holdfast.conversations import events as cv
from holdfast.conversations.errors import LockLost, PermanentError
from holdfast.conversations.lock import release_on_error
from holdfast.conversations.model import (
    ConversationKey,
    ConversationNotFound,
    LockAcquired,
    LockGrant,
    LockHeld,
    ParkedBatch,
    Staged,
    WaitingConversation,
    make_parked_id,
    redact_id,
)
from holdfast.conversations.outbox import Outbox
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import ConversationStore
from holdfast.conversations.windows import Queues, WindowOpener
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Events
from holdfast.core.queue.message import make_id

OWNER_SID = "sweeper"
_TOO_LATE = "it was not answered in time"


class Sweeper:
    """The sweeper of staged messages. Any number of sweepers may run at the same time."""

    def __init__(
        self,
        store: ConversationStore,
        queues: Queues,
        *,
        policy: ConversationPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        self._store, self._clock = store, clock
        self._policy = policy or ConversationPolicy()
        self._events = events or Events()
        self._windows = WindowOpener(store, queues, self._policy, clock, self._events)

    def sweep(self) -> cv.SweepFinished:
        """Inspect everything that is staged, once.

        Raises StoreUnavailable or QueueUnavailable.
        """
        waiting = triggered = parked = 0
        oldest = 0.0
        for conversation in self._store.waiting():
            age = self._clock.time() - conversation.oldest_staged_at
            waiting, oldest = waiting + 1, max(oldest, age)
            try:
                if age > self._policy.park_after_seconds:
                    parked += self._park(conversation)
                elif age > self._policy.max_wait_seconds + self._policy.grace_seconds:
                    triggered += self._trigger(conversation)
            except (PermanentError, LockLost) as error:  # continue with the others
                name = redact_id(conversation.key.conversation_id)
                self._events.emit(cv.BatchFailed(name, type(error).__name__))
        swept = cv.SweepFinished(waiting, triggered, parked, oldest)
        self._events.emit(swept)
        return swept

    def _trigger(self, waiting: WaitingConversation) -> bool:
        """Send a trigger by opening a window.

        While that trigger is on its way, no second one is sent.
        """
        conversation = self._store.get(waiting.key)
        if conversation is not None and conversation.is_locked(self._clock.time()):
            return False
        return self._windows.open(waiting.key, owner_sid=OWNER_SID, delay_seconds=0.0)

    def _park(self, waiting: WaitingConversation) -> int:
        """Park all messages of the conversation, and return how many.

        The lock is taken for each portion of them. Another worker may be answering, and a
        worker that takes over its lock must find the complete batch or none of it.
        """
        parked = 0
        while (rows := self._park_some(waiting.key)) > 0:
            parked += rows
        return parked

    def _park_some(self, key: ConversationKey) -> int:
        now = self._clock.time()
        result = self._store.acquire(
            key,
            owner=make_id(),
            trigger_id=OWNER_SID,
            now=now,
            expires_at=now + self._policy.lock_seconds,
        )
        match result:
            case LockHeld():
                return 0
            case LockAcquired(grant, conversation):
                with release_on_error(self._store.release, grant):
                    return self._park_under_lock(key, grant, conversation.outbox)
            case ConversationNotFound():
                return self._park_under_lock(key, None, None)

    def _park_under_lock(
        self, key: ConversationKey, grant: LockGrant | None, outbox: Outbox | None
    ) -> int:
        staged = self._store.staged(key.conversation_id)
        known = self._store.processed(key, [row.message_sid for row in staged])
        self._store.drop_staged(key.conversation_id, known)
        left = [row for row in staged if row.message_sid not in known]
        begun = [row for row in left if outbox and row.message_sid in outbox.sids]
        rows = begun or left[: self._policy.most_fragments]
        if rows:
            self._park_rows(key, grant, rows, outbox if begun else None)
        elif grant is not None:
            self._store.release(grant, None)
        return len(rows)

    def _park_rows(
        self,
        key: ConversationKey,
        grant: LockGrant | None,
        rows: list[Staged],
        outbox: Outbox | None,
    ) -> None:
        now = self._clock.time()
        sids = [row.message_sid for row in rows]
        parked = ParkedBatch(
            make_parked_id(key, sids), key, _TOO_LATE, now, tuple(rows), outbox
        )
        until = now + self._policy.remember_seconds
        self._store.park(grant, parked, remember_until=until)
        name = redact_id(key.conversation_id)
        self._events.emit(cv.BatchParked(name, len(rows), _TOO_LATE))
