"""Steps 7–9 of a turn: have the reply written once. (Step 10 is in delivery.py.)

WritingReply ── noted first: the batch is fixed, the thread is known ──▶ ask the writer
PreparedReply ── noted before anything is sent ──▶ step 10
"""

from collections.abc import Mapping
from typing import Any

from holdfast.chat import events as cv
from holdfast.chat.batching import (
    BatchedTurn,
    LockedTurn,
    WrittenTurn,
)
from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    ThreadGone,
    TransientError,
)
from holdfast.chat.model import ConversationKey, ConversationPolicy
from holdfast.chat.outbox import (
    Outbox,
    PreparedReply,
    WriterAnswer,
    WritingReply,
)
from holdfast.chat.ports import (
    NO_SECRET,
    ConversationStore,
    ProviderSource,
    ReplyRequest,
    ReplySender,
    ReplyWriter,
    Secret,
)
from holdfast.events import Events
from holdfast.lease.clock import Clock


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


class ReplyStep:
    """One of the components that change the state of a reply, with what they share."""

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


class ReplyPipeline(ReplyStep):
    """The component that has the reply written once."""

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
            case None | WritingReply():
                return None
            case earlier:
                return WrittenTurn(batch, earlier.answer, thread_id, earlier.parts)

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
        name, tokens = batch.locked.log_name, answer.completion_tokens
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
