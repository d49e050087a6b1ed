"""Stage 1: each inbound message is stored once, and the first of a window sends a trigger.

    validate ─▶ stage, once by sid ─▶ open the window ─▶ delayed trigger ─▶ mark it sent
                                           └─ one is open: its trigger answers this, too

Whoever dies on the way leaves nothing behind that the next delivery of the same message,
the next message of the customer, or the sweeper does not mend.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.conversations import events as cv
from holdfast.conversations.errors import InvalidInbound
from holdfast.conversations.messages import Inbound, checked
from holdfast.conversations.model import Conversation, ConversationKey, Fragment, redacted_id
from holdfast.conversations.policy import ConversationPolicy, ConversationProfile
from holdfast.conversations.ports import ConversationStore
from holdfast.conversations.windows import Queues, WindowOpener
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import QueueUnavailable, StoreUnavailable
from holdfast.core.events import Events
from holdfast.core.worker.context import Context
from holdfast.core.worker.handler import Result
from holdfast.core.worker.outcome import Done, Reject, Retry

_MOST_KNOWN = 10_000  # conversations that are not looked for again


@dataclass(frozen=True, slots=True)
class StagingResult:
    """What became of an inbound message."""

    key: ConversationKey
    new: bool  # False: it was staged before
    opened: bool  # it opened a window, and a trigger is on its way


class Stager:
    """Stages messages. `profiles`: what a conversation that is not there yet begins with, by
    the address the customer wrote to, `*` for any. Without one nothing is made up: such
    messages are parked. Safe to share between threads."""

    def __init__(
        self,
        store: ConversationStore,
        queues: Queues,
        *,
        terms: ConversationPolicy | None = None,
        profiles: Mapping[str, ConversationProfile] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        self._store, self._clock = store, clock
        self._terms = terms or ConversationPolicy()
        self._events = events or Events()
        self._profiles = profiles or {}
        self._windows = WindowOpener(store, queues, self._terms, clock, self._events)
        self._known: set[ConversationKey] = set()

    def stage(self, inbound: Inbound) -> StagingResult:
        """After the return the message is stored, and will be answered or parked.

        Raises InvalidInbound, and nothing is stored; StoreUnavailable or QueueUnavailable:
        hand it in again.
        """
        fragment = self._fragment(checked(inbound))
        self._introduce(inbound)
        expires_at = fragment.staged_at + self._terms.stage_seconds
        new = self._store.stage(fragment, expires_at=expires_at)
        name = redacted_id(fragment.key.conversation_id)
        self._events.emit(cv.FragmentStaged(name, fragment.key.channel.value, new))
        # Also for one that was staged before: whoever staged it may have died here.
        opened = self._windows.open(
            fragment.key,
            owner_sid=fragment.message_sid,
            delay_seconds=self._terms.window_seconds,
        )
        return StagingResult(fragment.key, new, opened)

    def __call__(self, message: Inbound, ctx: Context) -> Result:
        """For a worker, or a Lambda behind a queue."""
        try:
            self.stage(message)
        except InvalidInbound as problem:
            self._events.emit(cv.InboundRefused(str(problem)))
            return Reject(str(problem), log_reason=str(problem))
        except (StoreUnavailable, QueueUnavailable) as error:
            return Retry(reason=str(error), log_reason=type(error).__name__)
        return Done()

    def _fragment(self, inbound: Inbound) -> Fragment:
        now = self._clock.time()
        return Fragment(
            inbound.key,
            inbound.message_sid,
            inbound.body,
            received_at=now if inbound.received_at is None else inbound.received_at,
            staged_at=now,
            media=inbound.media,
        )

    def _introduce(self, inbound: Inbound) -> None:
        profile = self._profiles.get(inbound.recipient) or self._profiles.get("*")
        if profile is None or inbound.key in self._known:
            return
        channel_config = dict(profile.channel_config)
        if inbound.recipient:  # replies come from where the customer wrote to
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
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add(inbound.key)
