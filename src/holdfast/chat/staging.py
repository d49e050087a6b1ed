"""Stage 1: store each inbound message once, and send a trigger for the first of a window.

    validate ─▶ stage, once by sid ─▶ open the window ─▶ delayed trigger ─▶ mark it sent
                                           └─ one is open: its trigger covers this message, too

If a process crashes on the way, the next delivery of the same message, the next message of
the customer, or the sweeper completes the work.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.chat import events as cv
from holdfast.chat.actor import ConversationActor, Queues
from holdfast.chat.errors import InvalidInbound
from holdfast.chat.messages import Inbound, check_inbound
from holdfast.chat.model import Conversation, ConversationKey, Fragment
from holdfast.chat.policy import ConversationPolicy, ConversationProfile
from holdfast.chat.ports import ConversationStore
from holdfast.errors import QueueUnavailable, StoreUnavailable
from holdfast.events import Events
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.worker.context import Context
from holdfast.worker.handler import Result
from holdfast.worker.outcome import Done, Reject, Retry

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
