"""Step 10 of a turn: send each part of the reply once.

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

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from holdfast.chat import events as cv
from holdfast.chat.batching import LockedTurn, WrittenTurn
from holdfast.chat.errors import (
    AuthenticationFailed,
    LockLost,
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    TransientError,
)
from holdfast.chat.model import digest_texts
from holdfast.chat.outbox import (
    Outbox,
    PreparedReply,
    SendingReply,
    SentPart,
    UnclearReply,
    WriterAnswer,
)
from holdfast.chat.ports import ReplyPart, ReplySender, Secret
from holdfast.chat.replies import ReplyStep
from holdfast.errors import StoreUnavailable

_MAX_SENDS = 5  # unclear sends of one part in a row
_UNKNOWN = "it is not known whether the reply was sent"


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

    def find(self, since: float) -> SentPart | None:
        """Look the part up at the provider; see `ReplySender.find`."""
        accepted = (sent.message_sid for sent in self.accepted)
        known = [*_list_earlier_sids(self.written), *accepted]
        return self.sender.find(self.part, self.secret, since=since, known=known)


class ReplyDelivery(ReplyStep):
    """The component that sends what is not sent yet."""

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
                sent = self._resolve_unclear(following, since, sends)
            case SendingReply(since=since):
                sent, sends = self._resolve_interrupted(following, since), 1
            case _:
                sent, since, sends = None, self._clock.time(), 0
        while sent is None:
            sends += 1
            try:
                sent = self._send(following, since)
            except SendUnclear:
                self._note_unclear(following, since, sends)
                sent = self._resolve_unclear(following, since, sends)
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

    def _resolve_interrupted(self, following: _NextPart, since: float) -> SentPart | None:
        """Return the part that a process may still be about to send, or None to send it.

        Raises PermanentError if the batch must be parked.
        """
        try:
            sent = following.find(since)
        except SendStatusUnknown:
            sent = None
        return self._decide(following, sent, self._may_repeat(following), _UNKNOWN)

    def _resolve_unclear(
        self, following: _NextPart, since: float, sends: int
    ) -> SentPart | None:
        """Return the part that was sent by a call that is over, or None to send it again.

        Raises PermanentError if the batch must be parked, SendUnclear or TransientError if
        the next attempt must look it up, and LeaseLost.
        """
        may_repeat, reason = self._may_repeat(following), _UNKNOWN
        try:
            sent = self._look_up(following, since)
        except SendStatusUnknown:
            sent = None
        else:
            may_repeat = may_repeat or self._policy.in_doubt == "if_missing"
        if may_repeat and sends >= _MAX_SENDS:
            may_repeat, reason = False, f"the provider failed to send the reply {sends} times"
        return self._decide(following, sent, may_repeat, reason)

    def _look_up(self, following: _NextPart, since: float) -> SentPart | None:
        """Look the part up several times, and return None if it is still missing at the end.

        A provider may list a message some seconds after it accepted it. So only the last
        look-up shows that it has none, and if that one fails, its error is raised.
        """
        *delays, last_delay = self._policy.look_up_delays
        for delay_seconds in delays:
            self._wait(following.locked, delay_seconds)
            with suppress(TransientError):
                if (sent := following.find(since)) is not None:
                    return sent
        self._wait(following.locked, last_delay)
        return following.find(since)

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

    def _may_repeat(self, following: _NextPart) -> bool:
        return following.sender.repeatable or self._policy.in_doubt == "at_least_once"

    def _decide(
        self, following: _NextPart, sent: SentPart | None, may_repeat: bool, reason: str
    ) -> SentPart | None:
        outcome = "found" if sent is not None else "sent again" if may_repeat else "parked"
        self._events.emit(cv.SendInDoubt(following.part.key.log_name, outcome))
        if outcome == "parked":
            raise PermanentError(reason)
        return sent


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
