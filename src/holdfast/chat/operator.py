"""The decisions of an operator: about parked batches, and about who answers a conversation.

Also the texts that the command line and the web console show. Phone numbers and addresses are
masked, because screens are shared, filmed and pasted into tickets.
"""

import re

from holdfast.chat.actor import ConversationActor, release_on_error
from holdfast.chat.batching import build_turn, sort_fragments
from holdfast.chat.errors import ParkedNotFound, PermanentError, TransientError
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    Fragment,
    LockAcquired,
    ParkedBatch,
    Staged,
    Status,
    redact_id,
)
from holdfast.chat.outbox import WritingReply

_OWNER = "a person"
_SENT = "sent, says a person"
_NUMBER = re.compile(r"\+?\d[\d ().\-/]{5,}\d")


class Operator(ConversationActor):
    """The operator's commands. A command that is called again finds nothing to do."""

    def retry(self, parked_id: str) -> ParkedBatch:
        """Answer a parked batch again, after its cause was removed.

        Use this only if the reply was not sent. If the trigger cannot be pushed, the sweeper
        sends one later. Raises ParkedNotFound.
        """
        now = self._clock.time()
        expires_at = now + self._policy.stage_seconds
        parked = self._store.unpark(
            parked_id, back_to_stage=True, now=now, expires_at=expires_at
        )
        self._open_window(parked.key, owner_sid=_OWNER, delay_seconds=0.0)
        return parked

    def sent(self, parked_id: str) -> ParkedBatch:
        """Record that the reply was sent: write both messages to the history, send nothing.

        Raises ParkedNotFound, PermanentError when no reply was ever written, and
        TransientError while the conversation is being answered.
        """
        parked = self._find(parked_id)
        outbox = parked.outbox
        if outbox is None or isinstance(outbox, WritingReply) or not outbox.answer.text.strip():
            raise PermanentError("no reply was written for this batch: it can only be retried")
        fragments = sort_fragments(row for row in parked.staged if isinstance(row, Fragment))
        locked = self._lock(parked.key)
        # Parking moved the thread's mark behind this reply.
        thread = locked.conversation.thread_id, locked.conversation.thread_mark
        now = self._clock.time()
        reply = outbox.answer, outbox.parts, thread, now, _SENT
        with release_on_error(self._store.release, locked.grant):
            self._store.finish(
                locked.grant,
                build_turn(parked.sids, fragments, *reply),
                now=now,
                remember_until=now + self._policy.remember_seconds,
                parked_id=parked_id,
            )
        return parked

    def drop(self, parked_id: str) -> ParkedBatch:
        """Remove a parked batch unanswered. Its messages count as processed.

        Raises ParkedNotFound.
        """
        now = self._clock.time()
        return self._store.unpark(parked_id, back_to_stage=False, now=now, expires_at=now)

    def assign_to_person(self, key: ConversationKey) -> bool:
        """Let a person answer from now on, and park every new batch.

        Returns False if there is no such conversation.
        """
        return self._store.set_status(key, Status.WITH_PERSON)

    def resume_automation(self, key: ConversationKey) -> bool:
        """Answer the conversation automatically again.

        Parked batches stay parked; see `retry`. Returns False if there is no such
        conversation.
        """
        return self._store.set_status(key, Status.REPLY_SENT)

    def _find(self, parked_id: str) -> ParkedBatch:
        for parked in self._store.parked():
            if parked.parked_id == parked_id:
                return parked
        raise ParkedNotFound(f"nothing is parked under {parked_id!r}")

    def _lock(self, key: ConversationKey) -> LockAcquired:
        result = self._try_lock(key, _OWNER)
        if isinstance(result, LockAcquired):
            if result.conversation.outbox is None:
                return result
            # The outbox belongs to another batch whose reply may be on its way. Finishing
            # would clear it, and that reply would be sent twice.
            self._store.release(result.grant, None)
        raise TransientError(
            "the conversation is being answered, or it is gone: try again in a minute"
        )


# -- texts about conversations


def mask_address(address: str) -> str:
    """Return whatsapp:+49…89 or a…@example.org. Text that is not a number stays."""
    name, at, host = address.rpartition("@")
    if at:
        return f"{name[:1]}…@{host}"
    return _NUMBER.sub(lambda number: f"{number[0][:3]}…{number[0][-2:]}", address)


def format_status(conversation: Conversation, now: float) -> str:
    """Return the conversation's status."""
    if conversation.status != Status.PROCESSING:
        return conversation.status or "new"
    if conversation.is_locked(now):
        return "being answered"
    return "interrupted; the next trigger takes over"


def format_body(staged: Staged) -> str:
    """Return the text of a staged message, with the kinds of its media."""
    if not isinstance(staged, Fragment):
        return f"(cannot be read: {staged.problem})"
    media = "".join(f" [{kind}]" for kind in staged.media)
    return f"{staged.body}{media}"


def get_received_at(staged: Staged) -> float:
    """Return when a staged message was received, or 0 if it cannot be read."""
    return staged.received_at if isinstance(staged, Fragment) else 0.0


def has_id_prefix(conversation: Conversation, name: str) -> bool:
    """Return whether the id begins with `name`, as stored or as lists show it redacted."""
    known = conversation.key.conversation_id
    return bool(name) and (known.startswith(name) or redact_id(known).startswith(name))
