"""Step 10 of a turn: send the reply, each part at most once unless the policy allows more.

    connect ─▶ note SendingReply ─▶ send ─┬─ accepted ─▶ next part
                                          ├─ not sent ─▶ note PreparedReply, retry later
                                          ├─ refused for good ─▶ park
                                          └─ no response, or a crash ─▶ unknown

    unknown ─▶ look it up at the provider ─┬─ found ─▶ accepted
                                           └─ not found, or cannot tell ─▶ park, or send again

A provider that has no such message proves little: the process that noted SendingReply may be
frozen just before its call. So `at_most_once` parks a part that was not found. If the sender
is repeatable, the part is simply sent again.
"""

from collections.abc import Callable
from contextlib import suppress

from holdfast.conversations import events as cv
from holdfast.conversations.errors import (
    AuthenticationFailed,
    LockLost,
    PermanentError,
    SendStatusUnknown,
    TransientError,
)
from holdfast.conversations.merging import split_text
from holdfast.conversations.model import digest_texts, redact_id
from holdfast.conversations.outbox import Outbox, PreparedReply, SendingReply, SentPart
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import ConversationStore, ReplyPart, ReplySender
from holdfast.conversations.reply_generator import ProviderResolver
from holdfast.conversations.secret import Secret
from holdfast.conversations.turn_state import DeliveredTurn, WrittenTurn
from holdfast.core.clock import Clock
from holdfast.core.errors import StoreUnavailable
from holdfast.core.events import Events


class ReplyDelivery:
    """The sender of those parts of a reply that are not sent yet."""

    def __init__(
        self,
        store: ConversationStore,
        resolver: ProviderResolver,
        policy: ConversationPolicy,
        clock: Clock,
        events: Events,
    ) -> None:
        self._store, self._resolver = store, resolver
        self._policy, self._clock, self._events = policy, clock, events

    def deliver(self, written: WrittenTurn) -> DeliveredTurn:
        """Send every part of the reply that is not sent yet.

        Raises PermanentError when the batch must be parked, TransientError when a retry may
        help, SendUnclear when it is unknown whether a part was sent, and LeaseLost or
        LockLost when another worker may have taken over.
        """
        key = written.batch.locked.grant.key
        texts = split_text(written.answer.text, key.channel.max_length)
        parts = list(written.parts)
        if len(parts) >= len(texts):
            return DeliveredTurn(written, tuple(parts))
        config = written.batch.locked.conversation.channel_config
        sender, secret = self._resolver.resolve_sender(config, key)
        try:
            known = self._resolve_unknown(written, texts[len(parts)], sender, secret)
            if known is not None:
                parts.append(known)
            while len(parts) < len(texts):
                parts.append(self._send(written, tuple(parts), texts, sender, secret))
        except AuthenticationFailed:
            name = f"{key.channel.value}_credentials_id"
            self._resolver.forget_secrets(config, name, "credentials_id")
            raise
        return DeliveredTurn(written, tuple(parts))

    # -- one part

    def _send(
        self,
        written: WrittenTurn,
        accepted: tuple[SentPart, ...],
        texts: list[str],
        sender: ReplySender,
        secret: Secret,
    ) -> SentPart:
        part = _make_part(written, texts[len(accepted)], len(accepted))
        # Connect before the note. A process that is killed while it imports the provider's
        # library or logs in has certainly sent nothing, so it must not leave SendingReply.
        seconds = self._policy.sender_seconds
        with sender.connect(part, secret, timeout_seconds=seconds) as send:
            since = self._clock.time()
            self._note(
                written, SendingReply(written.batch.sids, written.answer, accepted, since)
            )
            sent = self._hand_over(written, accepted, send)
        self._events.emit(cv.ReplySent(_log_name(written), len(accepted) + 1, len(texts)))
        return sent

    def _hand_over(
        self, written: WrittenTurn, accepted: tuple[SentPart, ...], send: Callable[[], SentPart]
    ) -> SentPart:
        try:
            return send()
        except (TransientError, PermanentError):
            # The part was certainly not sent, so note that. If this note fails, SendingReply
            # stays, and the next attempt looks the part up at the provider.
            with suppress(LockLost, StoreUnavailable):
                prepared = PreparedReply(written.batch.sids, written.answer, accepted)
                self._note(written, prepared)
            raise

    def _note(self, written: WrittenTurn, outbox: Outbox) -> None:
        locked = written.batch.locked
        locked.check(self._clock.monotonic())
        self._store.note(locked.grant, outbox, written.thread_id)

    # -- a part of which it is unknown whether it was sent

    def _resolve_unknown(
        self, written: WrittenTurn, text: str, sender: ReplySender, secret: Secret
    ) -> SentPart | None:
        """Return the part in question if it was sent, or None if it may be sent now.

        Raises PermanentError when the policy demands that the batch is parked.
        """
        if written.unknown_since is None:
            return None
        part = _make_part(written, text, len(written.parts))
        known = self._look_up(written, written.unknown_since, part, sender, secret)
        if known is not None:
            self._events.emit(cv.SendInDoubt(_log_name(written), "found"))
            return known
        if sender.repeatable or self._policy.in_doubt == "at_least_once":
            self._events.emit(cv.SendInDoubt(_log_name(written), "sent again"))
            return None
        self._events.emit(cv.SendInDoubt(_log_name(written), "parked"))
        raise PermanentError("it is not known whether the reply was sent")

    def _look_up(
        self,
        written: WrittenTurn,
        since: float,
        part: ReplyPart,
        sender: ReplySender,
        secret: Secret,
    ) -> SentPart | None:
        known = [*_list_earlier_sids(written), *(sent.message_sid for sent in written.parts)]
        try:
            return sender.find(part, secret, since=since, known=known)
        except SendStatusUnknown:
            return None


def _make_part(written: WrittenTurn, text: str, index: int) -> ReplyPart:
    locked = written.batch.locked
    key = locked.grant.key
    names = (key.primary_channel, key.conversation_id, *written.batch.sids, str(index), text)
    reference = digest_texts(*names)
    return ReplyPart(key, locked.conversation.channel_config, text, reference, index)


def _list_earlier_sids(written: WrittenTurn) -> list[str]:
    """Return the sids of earlier replies, because an earlier reply may have the same text."""
    conversation = written.batch.locked.conversation
    earlier = [message for message in conversation.messages if message.role == "assistant"]
    sids = [str(sid) for message in earlier for sid in message.details.get("sids", ())]
    return [conversation.last_assistant_message_sid, *sids]


def _log_name(written: WrittenTurn) -> str:
    return redact_id(written.batch.locked.trigger.conversation_id)
