"""What stager, processor, sweeper and operator share: windows, triggers, lock and parking.

    first fragment ─▶ window opens ─▶ trigger, W later ─▶ processor closes it ─▶ batch
    other fragments join it, and send no trigger

Every staged row will be read by a processor, because one of three things is true. Its window
is open and a trigger is on its way. Or a processor closed the window and reads the staged
rows after that. Or a worker holds the lock, and checks for staged rows after it released the
lock.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.chat import events as cv
from holdfast.chat.messages import Trigger
from holdfast.chat.model import (
    Channel,
    ConversationKey,
    ConversationNotFound,
    ConversationPolicy,
    LockAcquired,
    LockGrant,
    LockHeld,
    ParkedBatch,
    Staged,
    Window,
    make_parked_id,
)
from holdfast.chat.outbox import Outbox
from holdfast.chat.ports import ConversationStore
from holdfast.errors import StoreUnavailable
from holdfast.events import Events
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.lease import RENEWED, Lease, Refused, Renewal
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import make_id

Queues = Mapping[Channel, QueueManager[Trigger]]


class ConversationActor:
    """One of the parties that change conversations, with the steps that they share."""

    def __init__(
        self,
        store: ConversationStore,
        queues: Queues,
        *,
        policy: ConversationPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        self._store, self._queues, self._clock = store, queues, clock
        self._policy = policy or ConversationPolicy()
        self._events = events or Events()

    def _open_window(
        self, key: ConversationKey, *, owner_sid: str, delay_seconds: float
    ) -> bool:
        """Open a window and send its trigger, or return False because one is open already."""
        now, policy = self._clock.time(), self._policy
        life_seconds = policy.max_wait_seconds + policy.lock_seconds + policy.grace_seconds
        window = Window(
            key.conversation_id,
            trigger_id=make_id(),
            owner_sid=owner_sid,
            opened_at=now,
            expires_at=now + life_seconds,
        )
        before = now - policy.grace_seconds
        if not self._store.open_window(window, now=now, untriggered_before=before):
            return False
        self._push_trigger(key, delay_seconds, id=window.trigger_id)
        self._events.emit(cv.WindowOpened(key.log_name, delay_seconds))
        # The trigger is in the queue. If the window cannot be marked, it is opened again
        # later, and the second trigger finds nothing to do.
        with suppress(StoreUnavailable):
            self._store.mark_triggered(window)
        return True

    def _push_trigger(self, key: ConversationKey, delay_seconds: float, **more: Any) -> None:
        trigger = Trigger(
            conversation_id=key.conversation_id, primary_channel=key.primary_channel, **more
        )
        self._queues[key.channel].push(trigger, delay_seconds=delay_seconds)

    def _try_lock(
        self, key: ConversationKey, trigger_id: str
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        now = self._clock.time()
        expires_at = now + self._policy.lock_seconds
        return self._store.acquire(
            key, owner=make_id(), trigger_id=trigger_id, now=now, expires_at=expires_at
        )

    def _read_unanswered(self, key: ConversationKey) -> list[Staged]:
        """Return the staged rows, and remove those that were answered before.

        A webhook that is delivered again stages its message again. Only the list of
        processed sids shows that it was answered.
        """
        staged = self._store.staged(key.conversation_id)
        sids = [row.message_sid for row in staged]
        known = self._store.processed(key, sids) if sids else set()
        if known:
            self._store.drop_staged(key.conversation_id, known)
        return [row for row in staged if row.message_sid not in known]

    def _park(
        self,
        key: ConversationKey,
        rows: Sequence[Staged],
        reason: str,
        grant: LockGrant | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        """Park these messages of the conversation for an operator; see `store.park`."""
        now = self._clock.time()
        parked_id = make_parked_id(key, (row.message_sid for row in rows))
        parked = ParkedBatch(parked_id, key, reason, now, tuple(rows), outbox)
        until = now + self._policy.remember_seconds
        self._store.park(grant, parked, remember_until=until)
        self._events.emit(cv.BatchParked(key.log_name, len(rows), reason))


# -- the lock


class ConversationLocks:
    """The LeaseSource that renews locks in the conversation store."""

    name = "conversations"
    renew_batch = 1

    def __init__(self, store: ConversationStore, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Renew each lock in the store, with one call for each."""
        return [self._renew(lease.handle, seconds) for lease in leases]

    def _renew(self, grant: LockGrant, seconds: float) -> Renewal:
        now = self._clock.time()
        if self._store.renew(grant, now=now, expires_at=now + seconds):
            return RENEWED
        return Refused("the conversation's lock was taken over, or it expired")


@contextmanager
def release_on_error(
    release: Callable[[LockGrant, str | None], None], grant: LockGrant
) -> Iterator[None]:
    """Release the lock if the block raises anything, and raise that again.

    Otherwise the customer would wait until the lock expires. A release that fails is not
    reported, because the lock expires by itself, and a block that ended with the lock has
    already released it.
    """
    try:
        yield
    except BaseException:
        with suppress(Exception):
            release(grant, None)
        raise
