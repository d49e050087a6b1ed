"""Steps 7–10 of a turn: have the reply written once, and send each part of it.

WritingReply ── noted first: the batch is fixed, the thread is known ──▶ ask the writer
PreparedReply ── noted before anything is sent ──▶ step 10

Each part is sent at most once unless the policy allows more:

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

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from holdfast.conversations import events as cv
from holdfast.conversations.errors import (
    AuthenticationFailed,
    LockLost,
    PermanentError,
    SendStatusUnknown,
    ThreadGone,
    TransientError,
)
from holdfast.conversations.merging import split_text
from holdfast.conversations.model import ConversationKey, digest_texts
from holdfast.conversations.outbox import (
    Outbox,
    PreparedReply,
    SendingReply,
    SentPart,
    SentReply,
    WriterAnswer,
    WritingReply,
)
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import (
    NO_SECRET,
    ConversationStore,
    ProviderSource,
    ReplyPart,
    ReplyRequest,
    ReplySender,
    ReplyWriter,
    Secret,
)
from holdfast.conversations.turn_state import (
    BatchedTurn,
    DeliveredTurn,
    LockedTurn,
    WrittenTurn,
)
from holdfast.core.clock import Clock
from holdfast.core.errors import StoreUnavailable
from holdfast.core.events import Events


class ProviderResolver:
    """Step 8: the writer and the sender of a conversation, and their secrets.

    A missing secret is reported before any call that costs money. Nothing is cached here.
    """

    def __init__(self, providers: ProviderSource) -> None:
        self._providers = providers

    def resolve_writer(self, config: Mapping[str, Any]) -> tuple[ReplyWriter, Secret]:
        """Return the writer that `ai_config` names, and its secret."""
        writer = self._providers.writer(str(config.get("provider") or "openai"))
        reference = str(config.get("ai_api_key_reference") or "")
        secret = self._fetch_secret(reference, "ai_api_key_reference", writer.secret_fields)
        return writer, secret

    def resolve_sender(
        self, config: Mapping[str, Any], key: ConversationKey
    ) -> tuple[ReplySender, Secret]:
        """Return the sender that `channel_config` names, and its secret."""
        default = "smtp" if key.channel == "email" else "twilio"
        sender = self._providers.sender(str(config.get("provider") or default))
        name = f"{key.channel.value}_credentials_id"
        reference = str(config.get(name) or config.get("credentials_id") or "")
        return sender, self._fetch_secret(reference, name, sender.secret_fields)

    def _fetch_secret(self, reference: str, setting: str, fields: tuple[str, ...]) -> Secret:
        if not reference:
            if fields:
                raise PermanentError(f"the conversation has no {setting}")
            return NO_SECRET
        secret = self._providers.secrets.get(reference)
        for field in fields:
            secret.reveal(field)
        return secret

    def forget_secrets(self, config: Mapping[str, Any], *settings: str) -> None:
        """Drop secrets that the provider rejected, so that the next attempt fetches them."""
        for setting in settings:
            if reference := config.get(setting):
                self._providers.secrets.forget(str(reference))


class ReplyPipeline:
    """The component that has the reply written, once, and sends what is not sent yet."""

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

    def _note(self, locked: LockedTurn, outbox: Outbox, thread_id: str) -> None:
        locked.check(self._clock.monotonic())
        self._store.note(locked.grant, outbox, thread_id)

    # -- steps 7–9: the reply

    def write(self, batch: BatchedTurn) -> WrittenTurn:
        """Return the reply that an earlier attempt left, or a new one.

        Afterwards the reply is stored as PreparedReply, or was in a later state before.
        """
        written = self._resume(batch) or self._generate(batch)
        if not written.answer.text.strip():
            raise PermanentError("the writer returned an empty reply")
        return written

    def _resume(self, batch: BatchedTurn) -> WrittenTurn | None:
        thread_id = batch.locked.conversation.thread_id
        match batch.earlier:
            case PreparedReply(_, answer, parts) | SentReply(_, answer, parts):
                return WrittenTurn(batch, answer, thread_id, parts)
            case SendingReply(_, answer, parts, since):
                return WrittenTurn(batch, answer, thread_id, parts, unknown_since=since)
            case _:
                return None

    def _generate(self, batch: BatchedTurn) -> WrittenTurn:
        conversation = batch.locked.conversation
        config = conversation.ai_config
        writer, secret = self._resolver.resolve_writer(config)
        # Check the sender's secret, too, because a reply that cannot be sent must not be paid
        # for.
        self._resolver.resolve_sender(conversation.channel_config, batch.locked.grant.key)
        started = self._clock.monotonic()
        try:
            answer, thread_id = self._ask_writer(batch, writer, secret)
        except AuthenticationFailed:
            self._resolver.forget_secrets(config, "ai_api_key_reference")
            raise
        self._note(batch.locked, PreparedReply(batch.sids, answer), thread_id)
        seconds = self._clock.monotonic() - started
        name, tokens = batch.locked.grant.key.log_name, answer.completion_tokens
        self._events.emit(cv.ReplyWritten(name, answer.prompt_tokens, tokens, seconds))
        return WrittenTurn(batch, answer, thread_id)

    def _ask_writer(
        self, batch: BatchedTurn, writer: ReplyWriter, secret: Secret
    ) -> tuple[WriterAnswer, str]:
        conversation = batch.locked.conversation
        again = isinstance(batch.earlier, WritingReply)
        try:
            return self._ask_in_thread(
                batch, writer, secret, conversation.thread_id, conversation.thread_mark, again
            )
        except ThreadGone:
            try:
                return self._ask_in_thread(batch, writer, secret, "", "", again=False)
            except ThreadGone:
                raise TransientError(
                    "the writer does not know the thread that it has just opened"
                ) from None

    def _ask_in_thread(
        self,
        batch: BatchedTurn,
        writer: ReplyWriter,
        secret: Secret,
        thread_id: str,
        thread_mark: str,
        again: bool,
    ) -> tuple[WriterAnswer, str]:
        config = batch.locked.conversation.ai_config
        thread_id = thread_id or writer.open_thread(config, secret)
        # Note this before the question, not with the reply: a worker that continues after a
        # crash must find the thread, and ask about exactly these messages.
        self._note(batch.locked, WritingReply(batch.sids), thread_id)
        question = ReplyRequest(thread_id, thread_mark, batch.text, again)
        seconds = self._policy.writer_seconds
        return writer.write(question, config, secret, timeout_seconds=seconds), thread_id

    # -- step 10: the send

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
            since, batch = self._clock.time(), written.batch
            sending = SendingReply(batch.sids, written.answer, accepted, since)
            self._note(batch.locked, sending, written.thread_id)
            sent = self._hand_over(written, accepted, send)
        self._events.emit(cv.ReplySent(part.key.log_name, len(accepted) + 1, len(texts)))
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
                self._note(written.batch.locked, prepared, written.thread_id)
            raise

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
        others = [*_list_earlier_sids(written), *(sent.message_sid for sent in written.parts)]
        try:
            known = sender.find(part, secret, since=written.unknown_since, known=others)
        except SendStatusUnknown:
            known = None
        repeat = sender.repeatable or self._policy.in_doubt == "at_least_once"
        outcome = "found" if known is not None else "sent again" if repeat else "parked"
        self._events.emit(cv.SendInDoubt(part.key.log_name, outcome))
        if outcome == "parked":
            raise PermanentError("it is not known whether the reply was sent")
        return known


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
