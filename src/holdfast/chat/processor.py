"""Stage 2: a trigger arrives, and the batch of its conversation is answered once.

     1  the queue's codec reads the trigger; a trigger that cannot be read is dead-lettered
     2  lock       acquire by owner, fence and expiry; the same write returns the row (step 7)
     3  hold       the keeper renews the lock, as it renews the message
     4–6  collect  staged rows without those answered before, in order, merged
     7–9  write    configuration and secrets; note WritingReply, ask the writer, note
                   PreparedReply
    10  deliver    note SendingReply, then send, part by part; look up what is unclear
    11–14  finish  both messages, the processed sids, the cleared outbox, the removed staged
                   rows and the free lock, in one write
    15  check again  send a trigger for messages that arrived meanwhile and have none; then
                   the trigger is acked

Every exit releases the lock. A trigger is acked only when its window is closed and the staged
rows were read after that. So no staged message is left without a trigger; see actor.py.
"""

from collections.abc import Sequence
from contextlib import suppress

from holdfast.chat import events as cv
from holdfast.chat.actor import ConversationActor, ConversationLocks, Queues
from holdfast.chat.batching import (
    BatchedTurn,
    LockedTurn,
    WrittenTurn,
    build_turn,
    choose_batch,
    compute_typing_seconds,
    find_row_problem,
    sort_fragments,
)
from holdfast.chat.errors import LockLost, PermanentError, SendUnclear, TransientError
from holdfast.chat.messages import Trigger
from holdfast.chat.model import (
    ConversationNotFound,
    ConversationPolicy,
    Fragment,
    LockAcquired,
    LockHeld,
    Status,
)
from holdfast.chat.outbox import SentReply, get_outbox_state
from holdfast.chat.ports import ConversationStore, ProviderSource
from holdfast.chat.replies import ProviderResolver, ReplyPipeline
from holdfast.errors import LeaseLost, QueueUnavailable, StoreUnavailable
from holdfast.events import Events
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import Lease
from holdfast.worker.handler import Result
from holdfast.worker.outcome import Done, GiveBack, Retry
from holdfast.worker.runner import Context

_TRANSIENT = (TransientError, SendUnclear, StoreUnavailable, QueueUnavailable)


class BatchProcessor(ConversationActor):
    """The handler of triggers, for a worker or a Lambda function.

    It is safe to share between threads. `max_attempts` must be that of the queue, because a
    batch that fails for an unknown reason is parked with the last attempt. `keeper` is
    started on first use; the caller that made it stops it.
    """

    def __init__(
        self,
        store: ConversationStore,
        providers: ProviderSource,
        queues: Queues,
        *,
        keeper: LeaseKeeper,
        policy: ConversationPolicy | None = None,
        max_attempts: int = 5,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        super().__init__(store, queues, policy=policy, clock=clock, events=events)
        self._keeper, self._max_attempts = keeper, max_attempts
        self._locks = ConversationLocks(store, clock)
        self._replies = ReplyPipeline(
            store, ProviderResolver(providers), self._policy, clock, self._events
        )

    def __call__(self, trigger: Trigger, ctx: Context) -> Result:
        try:
            return self._handle(trigger, ctx)
        except (PermanentError, *_TRANSIENT) as error:
            # PermanentError comes from a row that cannot be read until an operator repairs it.
            self._events.emit(cv.BatchFailed(trigger.key.log_name, type(error).__name__))
            return Retry(reason=str(error), log_reason=type(error).__name__)

    def _handle(self, trigger: Trigger, ctx: Context) -> Result:
        asked_at = self._clock.monotonic()
        match self._acquire(trigger):
            case LockHeld(trigger_id, expires_at):
                return self._handle_busy(trigger, trigger_id, expires_at)
            case ConversationNotFound():
                return self._park_unknown(trigger)
            case LockAcquired(grant, conversation):
                lease = Lease(
                    self._locks,
                    grant,
                    message_id=grant.key.log_name,
                    attempt=ctx.attempt,
                    fence=grant.fence,
                    claimed_at=asked_at,  # from before the call that acquired the lock
                    seconds=self._policy.lock_seconds,
                )
                return self._run_locked(LockedTurn(trigger, ctx, grant, lease, conversation))

    # -- step 2: the lock

    def _acquire(self, trigger: Trigger) -> LockAcquired | LockHeld | ConversationNotFound:
        """Acquire the lock, with a second try after the window is closed.

        A message that joined the window was staged before the second try. So the lock's
        owner sees it, because the owner checks the staged rows again after it released the
        lock. With only the first try, a message could join the window after that check, and
        would have no trigger.
        """
        result = self._try_lock(trigger.key, trigger.id)
        if isinstance(result, LockHeld):
            self._close_window(trigger)
            result = self._try_lock(trigger.key, trigger.id)
        return result

    def _handle_busy(self, trigger: Trigger, owner_trigger: str, expires_at: float) -> Result:
        """Ack the trigger, unless this trigger took the lock.

        If the lock's holder crashed, only redelivery of its own trigger lets another worker
        take over.
        """
        own = owner_trigger == trigger.id
        self._events.emit(cv.LockBusy(trigger.key.log_name, own))
        if not own:
            return Done()
        left = max(1.0, expires_at - self._clock.time())
        reason = "an earlier delivery of this trigger has the lock"
        return Retry(after_seconds=left, reason=reason, log_reason=reason)

    def _park_unknown(self, trigger: Trigger) -> Result:
        """Park the messages of a conversation that does not exist, so that none is lost."""
        self._close_window(trigger)
        if staged := self._store.staged(trigger.conversation_id):
            self._park(trigger.key, staged, "there is no such conversation")
        return Done()

    # -- step 3: under the lock

    def _run_locked(self, locked: LockedTurn) -> Result:
        try:
            self._renew(locked)
            if locked.conversation.outbox is not None:
                state = get_outbox_state(locked.conversation.outbox)
                self._events.emit(cv.LockTakenOver(locked.log_name, state))
            return self._answer(locked)
        except (LeaseLost, LockLost) as error:
            self._give_back(locked, Status.ERROR)
            return Retry(reason=str(error), log_reason=type(error).__name__)
        except BaseException:
            self._give_back(locked, Status.ERROR)
            raise
        finally:
            locked.lease.release("given back")

    def _renew(self, locked: LockedTurn) -> None:
        """Have the keeper renew the lock.

        If the keeper cannot start, the batch is answered without renewal. The lock is valid
        until its deadline, and every note before a step checks that deadline.
        """
        try:
            self._keeper.hold(locked.lease)
            self._keeper.start()
        except Exception as error:
            self._events.emit(cv.LockNotRenewed(locked.log_name, type(error).__name__))

    def _answer(self, locked: LockedTurn) -> Result:
        if not (fragments := self._collect(locked)):
            self._close_window(locked.trigger)
            self._store.release(locked.grant, None)
            self._events.emit(cv.NothingStaged(locked.log_name))
            self._check_again(locked)
            return Done()
        batch = self._choose_batch(locked, fragments)
        if (wait := self._find_typing_seconds(batch)) > 0:
            # Release the lock first. A trigger that finds the lock held is acked, and that
            # would include the later trigger of this window.
            self._store.release(locked.grant, None)
            self._prolong_window(locked.trigger, wait)
            return Done()
        if locked.ctx.stopping.is_set():
            self._give_back(locked, None)
            return GiveBack()
        self._close_window(locked.trigger)
        self._run_turn(batch)
        self._check_again(locked)
        return Done()

    # -- steps 4–6: the batch

    def _collect(self, locked: LockedTurn) -> tuple[Fragment, ...]:
        """Return the messages to answer, in order.

        Rows that cannot be answered are parked, so that they do not block the others.
        """
        key = locked.grant.key
        usable: list[Fragment] = []
        for row in self._read_unanswered(key):
            if problem := find_row_problem(row, key):
                self._park(key, [row], problem)
            elif isinstance(row, Fragment):
                usable.append(row)
        return sort_fragments(usable)

    def _choose_batch(self, locked: LockedTurn, fragments: Sequence[Fragment]) -> BatchedTurn:
        return choose_batch(locked, fragments, self._policy.most_fragments)

    def _find_typing_seconds(self, batch: BatchedTurn) -> float:
        """Return how long the batch waits for more messages; one that was begun does not."""
        if batch.earlier is not None:
            return 0.0
        quiet_seconds = self._clock.time() - max(row.staged_at for row in batch.fragments)
        waited_seconds = batch.locked.trigger.waited_seconds
        return compute_typing_seconds(self._policy, waited_seconds, quiet_seconds)

    # -- steps 7–14: one turn

    def _run_turn(self, batch: BatchedTurn) -> None:
        self._events.emit(cv.BatchBegun(batch.locked.log_name, len(batch.fragments)))
        try:
            self._require_automation(batch)
            delivered = self._replies.deliver(self._replies.write(batch))
        except PermanentError as problem:
            self._park_turn(batch, str(problem))
        except (LeaseLost, LockLost, *_TRANSIENT):
            raise
        except Exception as error:
            if batch.locked.ctx.attempt < self._max_attempts:
                raise
            self._park_turn(
                batch, f"every attempt failed, the last one with {type(error).__name__}"
            )
        else:
            self._finish(delivered)

    def _require_automation(self, batch: BatchedTurn) -> None:
        """Raise PermanentError if a person answers this conversation.

        A reply that an earlier attempt began is completed in any case.
        """
        with_person = batch.locked.conversation.previous_status == Status.WITH_PERSON
        if with_person and batch.earlier is None:
            raise PermanentError("a person has taken over this conversation")

    def _finish(self, delivered: WrittenTurn) -> None:
        batch, now = delivered.batch, self._clock.time()
        name, grant = batch.locked.log_name, batch.locked.grant
        answer, parts = delivered.answer, delivered.parts
        thread = delivered.thread_id, answer.thread_mark
        turn = build_turn(batch.sids, batch.fragments, answer, parts, thread, now)
        try:
            self._store.finish(
                grant,
                turn,
                now=now,
                remember_until=now + self._policy.remember_seconds,
            )
        except (LockLost, StoreUnavailable) as error:
            self._events.emit(cv.SentNotRecorded(name, type(error).__name__))
            sent = SentReply(batch.sids, answer, parts)
            # With this note the next worker knows that the reply was sent. The note is
            # refused if the write was carried out after all.
            with suppress(LockLost, StoreUnavailable):
                self._store.note(grant, sent, delivered.thread_id)
            raise
        self._events.emit(cv.TurnFinished(name, len(batch.fragments)))

    def _park_turn(self, batch: BatchedTurn, reason: str) -> None:
        grant = batch.locked.grant
        conversation = self._store.get(grant.key) or batch.locked.conversation
        self._park(grant.key, batch.fragments, reason, grant, conversation.outbox)

    # -- windows

    def _close_window(self, trigger: Trigger) -> None:
        """Close the trigger's window, so that the next message opens another one."""
        self._store.close_window(trigger.conversation_id, trigger.window)

    def _prolong_window(self, trigger: Trigger, delay_seconds: float) -> None:
        """Send another trigger for the same window, because the customer is still typing."""
        waited_seconds = trigger.waited_seconds + delay_seconds
        self._push_trigger(
            trigger.key, delay_seconds, window_id=trigger.window, waited_seconds=waited_seconds
        )
        self._events.emit(cv.WindowProlonged(trigger.key.log_name, delay_seconds))

    def _has_trigger(self, conversation_id: str) -> bool:
        """Check whether a window is open whose trigger will certainly arrive."""
        window = self._store.window(conversation_id)
        if window is None or not window.triggered:
            return False
        return window.expires_at > self._clock.time()

    # -- step 15, and every other exit

    def _check_again(self, locked: LockedTurn) -> None:
        """Send a trigger for messages that have none, after the lock is released.

        A trigger that arrived while the lock was held was acked, so its messages have none.
        """
        conversation_id = locked.trigger.conversation_id
        if self._store.staged(conversation_id) and not self._has_trigger(conversation_id):
            self._push_trigger(locked.trigger.key, self._policy.quiet_seconds)

    def _give_back(self, locked: LockedTurn, status: str | None) -> None:
        """Release the lock on every exit that did not finish.

        If another worker has taken the lock over, it keeps the lock.
        """
        try:
            self._store.release(locked.grant, status)
        except LockLost:
            pass
        except Exception as error:  # the lock expires by itself; report the first error
            self._events.emit(cv.ReleaseFailed(locked.log_name, type(error).__name__))
        if locked.ctx.lost.is_set() or locked.ctx.seconds_left <= 0:
            # Another worker has this trigger, or had it and settled it, so it may not be
            # delivered again. Other triggers that found this lock held were acked. A
            # superfluous trigger finds nothing to do.
            with suppress(QueueUnavailable):
                self._push_trigger(locked.trigger.key, self._policy.quiet_seconds)
