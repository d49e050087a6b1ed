"""The sweeper: after any failure, every staged message is still answered or parked.

staged longer than the maximum wait, no trigger on its way, no lock held ─▶ send a trigger
staged for days ─▶ park it, with the reason, before its row expires
"""

from holdfast.chat import events as cv
from holdfast.chat.actor import ConversationActor, release_on_error
from holdfast.chat.errors import LockLost, PermanentError
from holdfast.chat.model import (
    ConversationKey,
    ConversationNotFound,
    LockAcquired,
    LockGrant,
    LockHeld,
)
from holdfast.chat.outbox import Outbox

OWNER_SID = "sweeper"
_TOO_LATE = "it was not answered in time"


class Sweeper(ConversationActor):
    """The sweeper of staged messages. Any number of sweepers may run at the same time."""

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
                    parked += self._park_all(conversation.key)
                elif age > self._policy.max_wait_seconds + self._policy.grace_seconds:
                    triggered += self._trigger(conversation.key)
            except (PermanentError, LockLost) as error:  # continue with the others
                failed = cv.BatchFailed(conversation.key.log_name, type(error).__name__)
                self._events.emit(failed)
        swept = cv.SweepFinished(waiting, triggered, parked, oldest)
        self._events.emit(swept)
        return swept

    def _trigger(self, key: ConversationKey) -> bool:
        """Send a trigger by opening a window.

        While that trigger is on its way, no second one is sent.
        """
        conversation = self._store.get(key)
        if conversation is not None and conversation.is_locked(self._clock.time()):
            return False
        return self._open_window(key, owner_sid=OWNER_SID, delay_seconds=0.0)

    def _park_all(self, key: ConversationKey) -> int:
        """Park all messages of the conversation, and return how many.

        The lock is taken for each portion of them. Another worker may be answering, and a
        worker that takes over its lock must find the complete batch or none of it.
        """
        parked = 0
        while (rows := self._park_some(key)) > 0:
            parked += rows
        return parked

    def _park_some(self, key: ConversationKey) -> int:
        match self._try_lock(key, OWNER_SID):
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
            self._park(key, rows, _TOO_LATE, grant, outbox if begun else None)
        elif grant is not None:
            self._store.release(grant, None)
        return len(rows)
