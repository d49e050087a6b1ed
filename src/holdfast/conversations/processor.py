"""Stage 2: a trigger comes, and the whole batch of its conversation is answered once.

     1  the trigger is read (the queue's codec; what cannot be read is a dead letter)
     2  lock       acquire, by owner, fence and expiry; also hydrates the row (step 7)
     3  hold       the keeper renews the lock, as it renews the message
     4–6  gather   staged rows, less what was answered before; in order, merged
     7–9  write    configuration and secrets; Writing noted, the writer asked, Prepared noted
    10  deliver    Sending noted, then sent, part by part
    11–14  finish  both messages, the processed sids, the cleared outbox, the removed staged
                   rows and the free lock, in one write
    15  look again whoever came meanwhile and has no trigger gets one; then the trigger is
                   acked

Every way out gives the lock back, and a trigger is acked only when its window is closed and
the stage was read after that. So nothing is stranded: see windows.py.
"""

from contextlib import suppress

from holdfast.conversations import events as cv
from holdfast.conversations.batching import BatchCollector
from holdfast.conversations.delivery import ReplyDelivery
from holdfast.conversations.errors import LockLost, PermanentError, SendUnclear, TransientError
from holdfast.conversations.lock import ConversationLocks
from holdfast.conversations.messages import Trigger
from holdfast.conversations.model import (
    ConversationNotFound,
    HistoryMessage,
    LockAcquired,
    LockHeld,
    ParkedBatch,
    Status,
    Turn,
    parked_id_of,
    redacted_id,
)
from holdfast.conversations.outbox import SentReply, state_of
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import ConversationStore, ProviderSource
from holdfast.conversations.reply_generator import ProviderResolver, ReplyGenerator
from holdfast.conversations.turn_state import (
    BatchedTurn,
    DeliveredTurn,
    EmptyBatch,
    LockedTurn,
    StillTyping,
)
from holdfast.conversations.windows import Queues, WindowOpener
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import LeaseLost, QueueUnavailable, StoreUnavailable
from holdfast.core.events import Events
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.queue.message import new_id
from holdfast.core.worker.context import Context
from holdfast.core.worker.handler import Result
from holdfast.core.worker.outcome import Done, GiveBack, Retry

_PASSING = (TransientError, StoreUnavailable, QueueUnavailable)


class BatchProcessor:
    """The handler of triggers, for a worker or a Lambda. Safe to share between threads.

    `max_attempts` as the queue has it: what fails for an unknown reason is parked with the
    last one. `keeper` is started on first use; whoever made it stops it.
    """

    def __init__(
        self,
        store: ConversationStore,
        providers: ProviderSource,
        queues: Queues,
        *,
        keeper: LeaseKeeper,
        terms: ConversationPolicy | None = None,
        max_attempts: int = 5,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        self._store, self._keeper, self._clock = store, keeper, clock
        self._terms = terms = terms or ConversationPolicy()
        self._events = events = events or Events()
        self._max_attempts = max_attempts
        self._locks = ConversationLocks(store, clock)
        self._windows = WindowOpener(store, queues, terms, clock, events)
        equipment = ProviderResolver(providers)
        self._gathering = BatchCollector(store, terms, clock, events)
        self._desk = ReplyGenerator(store, equipment, terms, clock, events)
        self._delivery = ReplyDelivery(store, equipment, terms, clock, events)

    def __call__(self, trigger: Trigger, ctx: Context) -> Result:
        try:
            return self._handled(trigger, ctx)
        except (
            PermanentError,
            *_PASSING,
        ) as error:  # a row nobody can read is somebody's to mend
            self._events.emit(cv.BatchFailed(_name(trigger), type(error).__name__))
            return Retry(reason=str(error), log_reason=type(error).__name__)

    def _handled(self, trigger: Trigger, ctx: Context) -> Result:
        asked_at = self._clock.monotonic()
        match self._acquire(trigger):
            case LockHeld(trigger_id, expires_at):
                return self._busy(trigger, trigger_id, expires_at)
            case ConversationNotFound():
                return self._unknown(trigger)
            case LockAcquired(grant, conversation):
                seconds = self._terms.lock_seconds
                lease = self._locks.lease(
                    grant, attempt=ctx.attempt, asked_at=asked_at, seconds=seconds
                )
                return self._hold(LockedTurn(trigger, ctx, grant, lease, conversation))

    # -- step 2: the lock

    def _acquire(self, trigger: Trigger) -> LockAcquired | LockHeld | ConversationNotFound:
        """Refused, the window is closed before the second and last try. Whoever joined it
        was staged before that try, and is seen by the owner, who looks again after he gave
        the lock back. Tried only before, a message could join it after that look (MS-04).
        """
        answer = self._try(trigger)
        if isinstance(answer, LockHeld):
            self._windows.close(trigger)
            answer = self._try(trigger)
        return answer

    def _try(self, trigger: Trigger) -> LockAcquired | LockHeld | ConversationNotFound:
        now = self._clock.time()
        return self._store.acquire(
            trigger.key,
            owner=new_id(),
            trigger_id=trigger.id,
            now=now,
            expires_at=now + self._terms.lock_seconds,
        )

    def _busy(self, trigger: Trigger, owner_trigger: str, expires_at: float) -> Result:
        """Acked, unless it is the owner's own trigger: should he be dead, it is the only
        thing that brings somebody to take over (MS-05)."""
        own = owner_trigger == trigger.id
        self._events.emit(cv.LockBusy(_name(trigger), own))
        if not own:
            return Done()
        left = max(1.0, expires_at - self._clock.time())
        reason = "an earlier delivery of this trigger has the lock"
        return Retry(after_seconds=left, reason=reason, log_reason=reason)

    def _unknown(self, trigger: Trigger) -> Result:
        """Nothing can be answered, and nothing may be lost: it waits for a person."""
        self._windows.close(trigger)
        if staged := self._store.staged(trigger.conversation_id):
            sids = [one.message_sid for one in staged]
            reason = "there is no such conversation"
            now = self._clock.time()
            parked = ParkedBatch(
                parked_id_of(trigger.key, sids), trigger.key, reason, now, tuple(staged)
            )
            self._store.park(None, parked, remember_until=now + self._terms.remember_seconds)
            self._events.emit(cv.BatchParked(_name(trigger), len(staged), reason))
        return Done()

    # -- step 3: under the lock

    def _hold(self, locked: LockedTurn) -> Result:
        try:
            self._renew(locked)
            if locked.conversation.outbox is not None:
                state = state_of(locked.conversation.outbox)
                self._events.emit(cv.LockTakenOver(_name(locked.trigger), state))
            return self._answered(locked)
        except (LeaseLost, LockLost) as error:
            self._give_back(locked, Status.ERROR)
            return Retry(reason=str(error), log_reason=type(error).__name__)
        except SendUnclear as error:
            # The provider is asked in a while: what it took may not be listed yet.
            self._give_back(locked, Status.ERROR)
            self._events.emit(cv.BatchFailed(_name(locked.trigger), "SendUnclear"))
            seconds = self._terms.sender_seconds
            return Retry(after_seconds=seconds, reason=str(error), log_reason="SendUnclear")
        except BaseException:
            self._give_back(locked, Status.ERROR)
            raise
        finally:
            locked.lease.release("given back")

    def _renew(self, locked: LockedTurn) -> None:
        """Have the keeper renew the lock. If it cannot, the batch is answered without: the
        lock is good until its deadline, at which every note before a step looks first."""
        try:
            self._keeper.hold(locked.lease)
            self._keeper.start()
        except Exception as error:
            self._events.emit(cv.LockNotRenewed(_name(locked.trigger), type(error).__name__))

    def _answered(self, locked: LockedTurn) -> Result:
        match batch := self._gathering.gather(locked):
            case StillTyping(delay_seconds):
                # The lock first: a trigger that meets it is acked, also this later one.
                self._store.release(locked.grant, None)
                self._windows.prolong(locked.trigger, delay_seconds)
                return Done()
            case EmptyBatch():
                self._windows.close(locked.trigger)
                self._store.release(locked.grant, None)
                self._events.emit(cv.NothingStaged(_name(locked.trigger)))
            case BatchedTurn() if locked.ctx.stopping.is_set():
                self._give_back(locked, None)
                return GiveBack()
            case BatchedTurn():
                self._windows.close(locked.trigger)
                self._turn(batch)
        self._look_again(locked)
        return Done()

    # -- steps 7–14: one turn

    def _turn(self, batch: BatchedTurn) -> None:
        self._events.emit(cv.BatchBegun(_name(batch.locked.trigger), len(batch.fragments)))
        try:
            self._require_automation(batch)
            delivered = self._delivery.deliver(self._desk.write(batch))
        except PermanentError as problem:
            self._park(batch, str(problem))
        except (LeaseLost, LockLost, SendUnclear, *_PASSING):
            raise
        except Exception as error:
            if batch.locked.ctx.attempt < self._max_attempts:
                raise
            self._park(batch, f"every attempt failed, the last one with {type(error).__name__}")
        else:
            self._finish(delivered)

    def _require_automation(self, batch: BatchedTurn) -> None:
        """What an earlier attempt began to send is brought to its end all the same."""
        with_person = batch.locked.conversation.previous_status == Status.WITH_PERSON
        if with_person and batch.found is None:
            raise PermanentError("a person has taken over this conversation")

    def _finish(self, delivered: DeliveredTurn) -> None:
        locked, now = delivered.written.batch.locked, self._clock.time()
        try:
            self._store.finish(
                locked.grant,
                turn_of(delivered, now),
                now=now,
                remember_until=now + self._terms.remember_seconds,
            )
        except (LockLost, StoreUnavailable) as error:
            self._events.emit(cv.SentNotRecorded(_name(locked.trigger), type(error).__name__))
            written = delivered.written
            sent = SentReply(written.batch.sids, written.answer, delivered.parts)
            # No doubt then for whoever goes on. Refused when the write was done after all.
            with suppress(LockLost, StoreUnavailable):
                self._store.note(locked.grant, sent, written.thread_id)
            raise
        fragments = len(delivered.written.batch.fragments)
        self._events.emit(cv.TurnFinished(_name(locked.trigger), fragments))

    def _park(self, batch: BatchedTurn, reason: str) -> None:
        locked, now = batch.locked, self._clock.time()
        conversation = self._store.get(locked.grant.key) or locked.conversation
        parked = ParkedBatch(
            parked_id_of(locked.grant.key, batch.sids),
            locked.grant.key,
            reason,
            now,
            batch.fragments,
            conversation.outbox,
        )
        until = now + self._terms.remember_seconds
        self._store.park(locked.grant, parked, remember_until=until)
        self._events.emit(cv.BatchParked(_name(locked.trigger), len(batch.fragments), reason))

    # -- step 15, and every other way out

    def _look_again(self, locked: LockedTurn) -> None:
        """After the lock is free: a trigger that came meanwhile was acked (MS-03, MS-04)."""
        conversation_id = locked.trigger.conversation_id
        if self._store.staged(conversation_id) and not self._windows.ahead(conversation_id):
            self._windows.follow(locked.trigger.key)

    def _give_back(self, locked: LockedTurn, status: str | None) -> None:
        """On every way out that did not finish. Somebody else's lock stays his (MS-08)."""
        try:
            self._store.release(locked.grant, status)
        except LockLost:
            pass
        except Exception as error:  # it runs out by itself; what went wrong before counts
            self._events.emit(cv.ReleaseFailed(_name(locked.trigger), type(error).__name__))
        if locked.ctx.lost.is_set() or locked.ctx.seconds_left <= 0:
            # Somebody else has this trigger, or had it and settled it: then it brings nobody
            # back, and others that met our lock were acked. One too many finds nothing.
            with suppress(QueueUnavailable):
                self._windows.follow(locked.trigger.key)


def turn_of(delivered: DeliveredTurn, now: float) -> Turn:
    """Step 11: both messages of the history."""
    written, batch = delivered.written, delivered.written.batch
    answer, last = written.answer, delivered.parts[-1]
    user = HistoryMessage(
        "user", batch.text, now, batch.fragments[0].message_sid, {"sids": list(batch.sids)}
    )
    details = {
        "status": last.status,
        "sids": [part.message_sid for part in delivered.parts],
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
    }
    return Turn(
        sids=batch.sids,
        user=user,
        assistant=HistoryMessage("assistant", answer.text, now, last.message_sid, details),
        thread_id=written.thread_id,
        thread_mark=answer.thread_mark,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
    )


def _name(trigger: Trigger) -> str:
    return redacted_id(trigger.conversation_id)
