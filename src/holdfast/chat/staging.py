"""Stage 1: store each inbound message once, and send a trigger for the first of a window.

    validate ─▶ stage, once by sid ─▶ open the window ─▶ delayed trigger ─▶ mark it sent
                                           └─ one is open: its trigger covers this message, too

If a process crashes on the way, the next delivery of the same message, the next message of
the customer, or the sweeper completes the work. After any failure, every staged message is
still answered or parked:

    staged longer than the maximum wait, no trigger on its way, no lock held ─▶ send a trigger
    staged for days ─▶ park it, with the reason, before its row expires
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.chat import events as cv
from holdfast.chat.actor import ConversationActor, Queues, release_on_error
from holdfast.chat.batching import select_begun
from holdfast.chat.errors import InvalidInbound, LockLost, PermanentError
from holdfast.chat.messages import Inbound, check_inbound
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    ConversationNotFound,
    ConversationPolicy,
    ConversationProfile,
    Fragment,
    LockAcquired,
    LockGrant,
    LockHeld,
)
from holdfast.chat.outbox import Outbox
from holdfast.chat.ports import ConversationStore
from holdfast.errors import QueueUnavailable, StoreUnavailable
from holdfast.events import Events
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.worker.handler import Result
from holdfast.worker.outcome import Done, Reject, Retry
from holdfast.worker.runner import Context

OWNER_SID = "sweeper"
_TOO_LATE = "it was not answered in time"
_MAX_KNOWN = 10_000  # conversations that are certain to exist and are not created again


@dataclass(frozen=True, slots=True)
class StagingResult:
    """The result of staging an inbound message."""

    key: ConversationKey
    new: bool  # False if it was staged before
    opened: bool  # it opened a window, and a trigger is on its way


class Stager(ConversationActor):
    """The handler that stages inbound messages. It is safe to share between threads.

    `profiles` has the configuration of a new conversation by the address the customer wrote
    to, with `*` for any address. Without a matching profile no conversation is created, and
    the messages are parked.
    """

    def __init__(
        self,
        store: ConversationStore,
        queues: Queues,
        *,
        policy: ConversationPolicy | None = None,
        profiles: Mapping[str, ConversationProfile] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        super().__init__(store, queues, policy=policy, clock=clock, events=events)
        self._profiles = profiles or {}
        self._known: set[ConversationKey] = set()

    def stage(self, inbound: Inbound) -> StagingResult:
        """Store the message. Afterwards it is certain to be answered or parked.

        Raises InvalidInbound if the message can never be answered; then nothing is stored.
        After StoreUnavailable or QueueUnavailable call this again with the same message.
        """
        fragment = self._make_fragment(check_inbound(inbound))
        self._create_conversation(inbound)
        expires_at = fragment.staged_at + self._policy.stage_seconds
        new = self._store.stage(fragment, expires_at=expires_at)
        key = fragment.key
        self._events.emit(cv.FragmentStaged(key.log_name, key.channel.value, new))
        # Also if it was staged before, because that process may have crashed at this point.
        opened = self._open_window(
            key,
            owner_sid=fragment.message_sid,
            delay_seconds=self._policy.window_seconds,
        )
        return StagingResult(key, new, opened)

    def __call__(self, message: Inbound, ctx: Context) -> Result:
        """Handle a message of a queue, for a worker or a Lambda function."""
        try:
            self.stage(message)
        except InvalidInbound as problem:
            self._events.emit(cv.InboundRefused(str(problem)))
            return Reject(str(problem), log_reason=str(problem))
        except (StoreUnavailable, QueueUnavailable) as error:
            return Retry(reason=str(error), log_reason=type(error).__name__)
        return Done()

    def _make_fragment(self, inbound: Inbound) -> Fragment:
        now = self._clock.time()
        return Fragment(
            inbound.key,
            inbound.message_sid,
            inbound.body,
            received_at=now if inbound.received_at is None else inbound.received_at,
            staged_at=now,
            media=inbound.media,
        )

    def _create_conversation(self, inbound: Inbound) -> None:
        profile = self._profiles.get(inbound.recipient) or self._profiles.get("*")
        if profile is None or inbound.key in self._known:
            return
        channel_config = dict(profile.channel_config)
        if inbound.recipient:  # replies come from the address the customer wrote to
            channel_config.setdefault("sender", inbound.recipient)
        now = self._clock.time()
        self._store.create(
            Conversation(
                inbound.key,
                channel_config=channel_config,
                ai_config=profile.ai_config,
                created_at=now,
                updated_at=now,
            )
        )
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known.add(inbound.key)


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
        left = self._read_unanswered(key)
        begun = select_begun(left, outbox)
        rows = begun or left[: self._policy.most_fragments]
        if rows:
            self._park(key, rows, _TOO_LATE, grant, outbox if begun else None)
        elif grant is not None:
            self._store.release(grant, None)
        return len(rows)
