"""Step 10: the reply goes out, each part at most once unless somebody wants it otherwise.

    connect ─▶ SendingReply noted ─▶ send ─┬─ taken ─▶ next part
                                      ├─ surely not sent ─▶ PreparedReply noted, tried again later
                                      ├─ refused for good ─▶ parked
                                      └─ no answer, or we die ─▶ in doubt

    in doubt ─▶ ask the provider ─┬─ it has it ─▶ taken
                                  └─ it has none, or cannot tell ─▶ park, or send again

That a provider has no such message proves little: whoever noted SendingReply may be frozen just
before his call. So `at_most_once` parks what was not found. A sender that is repeatable is
simply asked again.
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
from holdfast.conversations.merging import split
from holdfast.conversations.model import mark_of, redacted_id
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
    """Sends the parts of a reply that are not out."""

    def __init__(
        self,
        store: ConversationStore,
        equipment: ProviderResolver,
        terms: ConversationPolicy,
        clock: Clock,
        events: Events,
    ) -> None:
        self._store, self._equipment = store, equipment
        self._terms, self._clock, self._events = terms, clock, events

    def deliver(self, written: WrittenTurn) -> DeliveredTurn:
        texts = split(written.answer.text, written.batch.locked.grant.key.channel.longest)
        parts = list(written.parts)
        if len(parts) >= len(texts):
            return DeliveredTurn(written, tuple(parts))
        config = written.batch.locked.conversation.channel_config
        sender, secret = self._equipment.sender(config, written.batch.locked.grant.key)
        try:
            if (
                found := self._resolved(written, texts[len(parts)], sender, secret)
            ) is not None:
                parts.append(found)
            while len(parts) < len(texts):
                parts.append(self._send(written, tuple(parts), texts, sender, secret))
        except AuthenticationFailed:
            channel = written.batch.locked.grant.key.channel.value
            self._equipment.distrust(config, f"{channel}_credentials_id", "credentials_id")
            raise
        return DeliveredTurn(written, tuple(parts))

    # -- one part

    def _send(
        self,
        written: WrittenTurn,
        out: tuple[SentPart, ...],
        texts: list[str],
        sender: ReplySender,
        secret: Secret,
    ) -> SentPart:
        part = _part(written, texts[len(out)], len(out))
        # Connected first: a process that is killed while it imports the provider's library
        # or logs in has surely sent nothing, and must not leave a doubt behind.
        seconds = self._terms.sender_seconds
        with sender.connect(part, secret, timeout_seconds=seconds) as send:
            since = self._clock.time()
            self._note(written, SendingReply(_sids(written), written.answer, out, since))
            taken = self._handed_over(written, out, send)
        self._events.emit(cv.ReplySent(_name(written), len(out) + 1, len(texts)))
        return taken

    def _handed_over(
        self, written: WrittenTurn, out: tuple[SentPart, ...], send: Callable[[], SentPart]
    ) -> SentPart:
        try:
            return send()
        except (TransientError, PermanentError):
            # Surely not sent, so there is no doubt to leave behind. Should this note fail,
            # there is: the next attempt asks the provider.
            with suppress(LockLost, StoreUnavailable):
                self._note(written, PreparedReply(_sids(written), written.answer, out))
            raise

    def _note(self, written: WrittenTurn, outbox: Outbox) -> None:
        locked = written.batch.locked
        locked.check(self._clock.monotonic())
        self._store.note(locked.grant, outbox, written.thread_id)

    # -- doubt

    def _resolved(
        self, written: WrittenTurn, text: str, sender: ReplySender, secret: Secret
    ) -> SentPart | None:
        """The part in doubt, if it is out; None: it may be sent. Raises PermanentError."""
        if written.doubt_since is None:
            return None
        part = _part(written, text, len(written.parts))
        found = self._asked(written, part, sender, secret)
        if found is not None:
            self._events.emit(cv.SendInDoubt(_name(written), "found"))
            return found
        if sender.repeatable or self._terms.in_doubt == "at_least_once":
            self._events.emit(cv.SendInDoubt(_name(written), "sent again"))
            return None
        self._events.emit(cv.SendInDoubt(_name(written), "parked"))
        raise PermanentError("it is not known whether the reply was sent")

    def _asked(
        self, written: WrittenTurn, part: ReplyPart, sender: ReplySender, secret: Secret
    ) -> SentPart | None:
        known = [*_sent_before(written), *(one.message_sid for one in written.parts)]
        try:
            return sender.find(part, secret, since=written.doubt_since or 0.0, known=known)
        except SendStatusUnknown:
            return None


def _part(written: WrittenTurn, text: str, index: int) -> ReplyPart:
    locked = written.batch.locked
    key = locked.grant.key
    names = (key.primary_channel, key.conversation_id, *_sids(written), str(index), text)
    return ReplyPart(key, locked.conversation.channel_config, text, mark_of(*names), index)


def _sent_before(written: WrittenTurn) -> list[str]:
    """Messages of earlier replies: the same words may have been said before."""
    conversation = written.batch.locked.conversation
    earlier = [one for one in conversation.messages if one.role == "assistant"]
    parts = [str(sid) for one in earlier for sid in one.details.get("sids", ())]
    return [conversation.last_assistant_message_sid, *parts]


def _sids(written: WrittenTurn) -> tuple[str, ...]:
    return written.batch.sids


def _name(written: WrittenTurn) -> str:
    return redacted_id(written.batch.locked.trigger.conversation_id)
