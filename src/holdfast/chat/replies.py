"""Steps 7–10 of a turn: have the reply written once, and send each part of it once.

WritingReply ── noted first: the batch is fixed, the thread is known ──▶ ask the writer
PreparedReply ── noted before anything is sent ──▶ send

    connect ─▶ note SendingReply ─▶ send ─┬─ accepted ─▶ next part
                                          ├─ not sent ─▶ note PreparedReply, retry later
                                          ├─ refused for good ─▶ park
                                          ├─ 5xx, timed out, reset ─▶ note UnclearReply
                                          └─ a crash ─▶ SendingReply is left behind

UnclearReply: the call is over, so no process can still send this part. It is looked up 1, 3,
7, 15 and 30 seconds later, while the keeper renews lock and trigger.

    found ───────────────────────────▶ accepted
    still missing 30 seconds later ──▶ send again; after 5 unclear sends in a row, park
    the provider cannot tell ────────▶ park
    a look-up fails, the worker stops, too little time is left
                                   ──▶ retry later: UnclearReply stays, and the next attempt
                                       begins with a whole series of look-ups
    a lease is lost ─────────────────▶ nothing is sent; the new holder decides

SendingReply of an earlier attempt: its process may be frozen just before its call, so a
missing message proves nothing. It is looked up once.

    found ──▶ accepted                 missing, or the provider cannot tell ──▶ park

That is the policy `if_missing`. `at_most_once` also parks a part that is still missing after
the last look-up. `at_least_once`, and a sender that is repeatable, send again instead of
parking.

What `if_missing` promises: a part is handed over again only under the lock, only after the
call before it has ended, and only if the provider reported 30 seconds later that it has no
such message. So a customer gets a part twice only if the provider accepts a message, answers
with an error, and lists it more than 30 seconds later. (With `writer_seconds` below 60 the
time is half of that.)
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from holdfast.chat import events as cv
from holdfast.chat.batching import BatchedTurn, LockedTurn, WrittenTurn
from holdfast.chat.errors import (
    AuthenticationFailed,
    LockLost,
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    ThreadGone,
    TransientError,
)
from holdfast.chat.model import ConversationKey, ConversationPolicy, digest_texts
from holdfast.chat.outbox import (
    Outbox,
    PreparedReply,
    SendingReply,
    SentPart,
    UnclearReply,
    WriterAnswer,
    WritingReply,
)
from holdfast.chat.ports import (
    NO_SECRET,
    ConversationStore,
    ProviderSource,
    ReplyPart,
    ReplyRequest,
    ReplySender,
    ReplyWriter,
    Secret,
)
from holdfast.errors import StoreUnavailable
from holdfast.events import Events
from holdfast.lease.clock import Clock

_MAX_SENDS = 5  # unclear sends of one part in a row
_EARLIER_MESSAGES = 20  # whose sids a look-up passes over
_UNKNOWN = "it is not known whether the reply was sent"


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


@dataclass(frozen=True, slots=True)
class _NextPart:
    """The part to be sent next, after those that were `accepted`."""

    written: WrittenTurn
    accepted: tuple[SentPart, ...]
    part: ReplyPart
    total: int  # parts of the reply
    sender: ReplySender
    secret: Secret

    @property
    def locked(self) -> LockedTurn:
        """Return the state that has lock and trigger."""
        return self.written.batch.locked

    @property
    def reply(self) -> tuple[tuple[str, ...], WriterAnswer, tuple[SentPart, ...]]:
        """Return what every state of the outbox begins with."""
        return self.written.batch.sids, self.written.answer, self.accepted


class ReplyPipeline:
    """The component that has a reply written and sends it."""

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

    # -- steps 7–9: the reply is written

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
        known = conversation.thread_id, conversation.thread_mark, again
        for thread_id, thread_mark, again in (known, ("", "", False)):
            with suppress(ThreadGone):
                return self._ask_in_thread(batch, writer, secret, thread_id, thread_mark, again)
        raise TransientError("the writer does not know the thread that it has just opened")

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

    # -- step 10: the parts that are not sent yet

    def deliver(self, written: WrittenTurn) -> WrittenTurn:
        """Send every part of the reply that is not sent yet, and return the turn with all.

        Raises PermanentError when the batch must be parked, TransientError or SendUnclear
        when a retry may help, and LeaseLost or LockLost when another worker may have taken
        over.
        """
        key = written.batch.locked.grant.key
        texts = split_text(written.answer.text, key.channel.max_length)
        parts = list(written.parts)
        if len(parts) >= len(texts):
            return written
        config = written.batch.locked.conversation.channel_config
        sender, secret = self._resolver.resolve_sender(config, key)
        earlier: Outbox | None = written.batch.earlier
        try:
            while len(parts) < len(texts):
                part = _make_part(written, texts[len(parts)], len(parts))
                following = _NextPart(written, tuple(parts), part, len(texts), sender, secret)
                parts.append(self._settle_part(following, earlier))
                earlier = None
        except AuthenticationFailed:
            name = f"{key.channel.value}_credentials_id"
            self._resolver.forget_secrets(config, name, "credentials_id")
            raise
        return replace(written, parts=tuple(parts))

    def _settle_part(self, following: _NextPart, earlier: Outbox | None) -> SentPart:
        """Return the part as the provider accepted it, now or in an earlier attempt."""
        match earlier:
            case UnclearReply(since=since, sends=sends):
                sent = self._resolve(following, since, sends, is_over=True)
            case SendingReply(since=since):
                sent, sends = self._resolve(following, since, 1, is_over=False), 1
            case _:
                sent, since, sends = None, self._clock.time(), 0
        while sent is None:
            sends += 1
            try:
                sent = self._send(following, since)
            except SendUnclear:
                self._note_unclear(following, since, sends)
                sent = self._resolve(following, since, sends, is_over=True)
        return sent

    # -- the send

    def _send(self, following: _NextPart, since: float) -> SentPart:
        # Connect before the note. A process that is killed while it imports the provider's
        # library or logs in has certainly sent nothing, so it must not leave SendingReply.
        seconds = self._policy.sender_seconds
        with following.sender.connect(
            following.part, following.secret, timeout_seconds=seconds
        ) as send:
            self._note_part(following, SendingReply(*following.reply, since))
            sent = self._hand_over(following, send)
        name, number = following.part.key.log_name, len(following.accepted) + 1
        self._events.emit(cv.ReplySent(name, number, following.total))
        return sent

    def _hand_over(self, following: _NextPart, send: Callable[[], SentPart]) -> SentPart:
        try:
            return send()
        except (TransientError, PermanentError):
            # The part was certainly not sent, so note that. If this note fails, SendingReply
            # stays, and the next attempt looks the part up at the provider.
            with suppress(LockLost, StoreUnavailable):
                self._note_part(following, PreparedReply(*following.reply))
            raise

    def _note_unclear(self, following: _NextPart, since: float, sends: int) -> None:
        # This process knows that its call is over, so it can go on without the note.
        with suppress(StoreUnavailable):
            self._note_part(following, UnclearReply(*following.reply, since, sends))

    def _note_part(self, following: _NextPart, outbox: Outbox) -> None:
        self._note(following.locked, outbox, following.written.thread_id)

    # -- a part of which it is unknown whether it was sent

    def _resolve(
        self, following: _NextPart, since: float, sends: int, *, is_over: bool
    ) -> SentPart | None:
        """Return the part as it was sent, or None to send it again.

        If the call is not over, a process may still be about to send the part. Raises
        PermanentError if the batch must be parked, SendUnclear or TransientError if the next
        attempt must look the part up, and LeaseLost.
        """
        doubt, reason = self._policy.in_doubt, _UNKNOWN
        may_repeat = following.sender.repeatable or doubt == "at_least_once"
        try:
            sent = self._look_up(following, since) if is_over else self._find(following, since)
        except SendStatusUnknown:
            sent = None
        else:
            may_repeat = may_repeat or (is_over and doubt == "if_missing")
        if may_repeat and sends >= _MAX_SENDS:
            may_repeat, reason = False, f"the provider failed to send the reply {sends} times"
        outcome = "found" if sent is not None else "sent again" if may_repeat else "parked"
        self._events.emit(cv.SendInDoubt(following.part.key.log_name, outcome))
        if outcome == "parked":
            raise PermanentError(reason)
        return sent

    def _look_up(self, following: _NextPart, since: float) -> SentPart | None:
        """Look the part up several times, and return None if it is still missing at the end.

        A provider may list a message some seconds after it accepted it. So only the last
        look-up shows that it has none, and if that one fails, its error is raised.
        """
        *delays, last_delay = self._policy.look_up_delays
        for delay_seconds in delays:
            self._wait(following.locked, delay_seconds)
            with suppress(TransientError):
                if (sent := self._find(following, since)) is not None:
                    return sent
        self._wait(following.locked, last_delay)
        return self._find(following, since)

    def _find(self, following: _NextPart, since: float) -> SentPart | None:
        """Look the part up at the provider; see `ReplySender.find`.

        An earlier reply may have the same text, so the sids of the last replies are known.
        """
        earlier = self._store.history(following.part.key, limit=_EARLIER_MESSAGES)
        known = [sent.message_sid for sent in following.accepted]
        for message in earlier:
            if message.role == "assistant":
                known += [message.message_sid, *map(str, message.details.get("sids", ()))]
        return following.sender.find(following.part, following.secret, since=since, known=known)

    def _wait(self, locked: LockedTurn, seconds: float) -> None:
        """Wait, and check that both leases are still held.

        Raises SendUnclear if the worker stops, or if a send would no longer fit into the time
        of an attempt. A Lambda function is cut off after that time.
        """
        used_seconds = self._clock.monotonic() - locked.lease.claimed_at
        if used_seconds + seconds > self._policy.writer_seconds:
            raise SendUnclear("it is not yet known whether the reply was sent: no time is left")
        if self._clock.wait(locked.ctx.stopping, seconds):
            raise SendUnclear("it is not yet known whether the reply was sent: stopping")
        locked.check(self._clock.monotonic())


def _make_part(written: WrittenTurn, text: str, index: int) -> ReplyPart:
    locked = written.batch.locked
    key = locked.grant.key
    names = (key.primary_channel, key.conversation_id, *written.batch.sids, str(index), text)
    reference = digest_texts(*names)
    return ReplyPart(key, locked.conversation.channel_config, text, reference, index)


# -- the parts


def split_text(text: str, max_units: int) -> list[str]:
    """Split `text` into parts of at most `max_units` UTF-16 units, as providers count them.

    The cut is after a paragraph, a line, a sentence or a word if there is one in the second
    half of a part.
    """
    parts = []
    rest = text.strip()
    while len(encoded := rest.encode("utf-16-le", "surrogatepass")) > 2 * max_units:
        # Half of a character that takes two units is left out.
        fitting = encoded[: 2 * max_units].decode("utf-16-le", "ignore")
        cut = _find_cut(rest, len(fitting))
        parts.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [part for part in (*parts, rest) if part]


def _find_cut(text: str, max_length: int) -> int:
    for mark in ("\n\n", "\n", ". ", "! ", "? ", " "):
        position = text.rfind(mark, max_length // 2, max_length)
        if position > 0:
            return position + len(mark)
    return max(1, max_length)
