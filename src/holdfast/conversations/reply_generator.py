"""Steps 7–9: configuration, secrets, and the reply.

WritingReply ── note first: the batch is fixed, the thread is known ──▶ ask the writer
PreparedReply ── note before anything is sent ──▶ step 10
"""

from collections.abc import Mapping
from typing import Any

from holdfast.conversations import events as cv
from holdfast.conversations.errors import (
    AuthenticationFailed,
    PermanentError,
    ThreadGone,
    TransientError,
)
from holdfast.conversations.model import ConversationKey, redacted_id
from holdfast.conversations.outbox import (
    PreparedReply,
    SendingReply,
    SentReply,
    WriterAnswer,
    WritingReply,
)
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import (
    ConversationStore,
    ProviderSource,
    ReplyRequest,
    ReplySender,
    ReplyWriter,
)
from holdfast.conversations.secret import NO_SECRET, Secret
from holdfast.conversations.turn_state import BatchedTurn, WrittenTurn
from holdfast.core.clock import Clock
from holdfast.core.events import Events


class ProviderResolver:
    """Step 8: who writes and who sends for a conversation, and their secrets.

    What is missing is said before anything is paid for. Nothing here is kept.
    """

    def __init__(self, providers: ProviderSource) -> None:
        self._providers = providers

    def writer(self, config: Mapping[str, Any]) -> tuple[ReplyWriter, Secret]:
        writer = self._providers.writer(str(config.get("provider") or "openai"))
        reference = str(config.get("ai_api_key_reference") or "")
        return writer, self._secret(reference, "ai_api_key_reference", writer.secret_fields)

    def sender(
        self, config: Mapping[str, Any], key: ConversationKey
    ) -> tuple[ReplySender, Secret]:
        usual = "smtp" if key.channel == "email" else "twilio"
        sender = self._providers.sender(str(config.get("provider") or usual))
        name = f"{key.channel.value}_credentials_id"
        reference = str(config.get(name) or config.get("credentials_id") or "")
        return sender, self._secret(reference, name, sender.secret_fields)

    def _secret(self, reference: str, setting: str, fields: tuple[str, ...]) -> Secret:
        if not reference:
            if fields:
                raise PermanentError(f"the conversation has no {setting}")
            return NO_SECRET
        secret = self._providers.secrets.get(reference)
        for field in fields:
            secret.reveal(field)
        return secret

    def distrust(self, config: Mapping[str, Any], *settings: str) -> None:
        """The provider does not take these secrets: the next attempt fetches them anew."""
        for setting in settings:
            if reference := config.get(setting):
                self._providers.secrets.forget(str(reference))


class ReplyGenerator:
    """Has the reply written, once."""

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

    def write(self, batch: BatchedTurn) -> WrittenTurn:
        """The reply, found or new. After the return it is written down as PreparedReply, or was
        further already."""
        written = self._found(batch) or self._ask(batch)
        if not written.answer.text.strip():
            raise PermanentError("the writer answered nothing")
        return written

    def _found(self, batch: BatchedTurn) -> WrittenTurn | None:
        thread_id = batch.locked.conversation.thread_id
        match batch.found:
            case PreparedReply(_, answer, parts) | SentReply(_, answer, parts):
                return WrittenTurn(batch, answer, thread_id, parts)
            case SendingReply(_, answer, parts, since):
                return WrittenTurn(batch, answer, thread_id, parts, doubt_since=since)
            case _:
                return None

    def _ask(self, batch: BatchedTurn) -> WrittenTurn:
        config = batch.locked.conversation.ai_config
        writer, secret = self._equipment.writer(config)
        # The sender's secret, too: a reply that cannot be sent must not be paid for.
        self._equipment.sender(batch.locked.conversation.channel_config, batch.locked.grant.key)
        started = self._clock.monotonic()
        try:
            answer, thread_id = self._answer(batch, writer, secret)
        except AuthenticationFailed:
            self._equipment.distrust(config, "ai_api_key_reference")
            raise
        self._note(batch, PreparedReply(batch.sids, answer), thread_id)
        self._tell(batch, answer, self._clock.monotonic() - started)
        return WrittenTurn(batch, answer, thread_id)

    def _answer(
        self, batch: BatchedTurn, writer: ReplyWriter, secret: Secret
    ) -> tuple[WriterAnswer, str]:
        conversation = batch.locked.conversation
        again = isinstance(batch.found, WritingReply)
        try:
            return self._in_thread(
                batch, writer, secret, conversation.thread_id, conversation.thread_mark, again
            )
        except ThreadGone:
            try:
                return self._in_thread(batch, writer, secret, "", "", again=False)
            except ThreadGone:
                raise TransientError(
                    "the writer does not know the thread it just began"
                ) from None

    def _in_thread(
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
        # Before the question, not with the reply: who goes on after a crash must find the
        # thread, and ask for these messages only (MS-21).
        self._note(batch, WritingReply(batch.sids), thread_id)
        question = ReplyRequest(thread_id, thread_mark, batch.text, again)
        seconds = self._terms.writer_seconds
        return writer.write(question, config, secret, timeout_seconds=seconds), thread_id

    def _note(
        self, batch: BatchedTurn, outbox: WritingReply | PreparedReply, thread_id: str
    ) -> None:
        batch.locked.check(self._clock.monotonic())
        self._store.note(batch.locked.grant, outbox, thread_id)

    def _tell(self, batch: BatchedTurn, answer: WriterAnswer, seconds: float) -> None:
        name = redacted_id(batch.locked.trigger.conversation_id)
        self._events.emit(
            cv.ReplyWritten(name, answer.prompt_tokens, answer.completion_tokens, seconds)
        )
