"""What a person decides: about what is parked, and who answers a conversation."""

from holdfast.conversations.errors import ParkedNotFound, PermanentError, TransientError
from holdfast.conversations.lock import released_on_error
from holdfast.conversations.merging import in_order, merged
from holdfast.conversations.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockAcquired,
    ParkedBatch,
    Status,
    Turn,
)
from holdfast.conversations.outbox import SentPart, WriterAnswer, WritingReply
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import ConversationStore
from holdfast.conversations.windows import Queues, WindowOpener
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Events
from holdfast.core.queue.message import new_id

_BY_HAND = "a person"


class Operator:
    """All of it may be called twice; the second time there is nothing to do."""

    def __init__(
        self,
        store: ConversationStore,
        queues: Queues,
        *,
        terms: ConversationPolicy | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        self._store, self._clock = store, clock
        self._terms = terms or ConversationPolicy()
        self._windows = WindowOpener(store, queues, self._terms, clock, events or Events())

    def retry(self, parked_id: str) -> ParkedBatch:
        """The reply was not sent, and what was wrong is mended: answer it anew.

        Should the trigger not get out, the sweeper sends one. Raises ParkedNotFound.
        """
        now = self._clock.time()
        expires_at = now + self._terms.stage_seconds
        parked = self._store.unpark(
            parked_id, back_to_stage=True, now=now, expires_at=expires_at
        )
        self._windows.open(parked.key, owner_sid=_BY_HAND, delay_seconds=0.0)
        return parked

    def sent(self, parked_id: str) -> ParkedBatch:
        """The reply is out: write both messages into the history, send nothing.

        Raises ParkedNotFound; PermanentError when no reply was ever written; TransientError while the
        conversation is being answered.
        """
        parked = self._find(parked_id)
        outbox = parked.outbox
        if outbox is None or isinstance(outbox, WritingReply) or not outbox.answer.text.strip():
            raise PermanentError("no reply was written for this batch: it can only be retried")
        locked = self._lock(parked.key)
        now = self._clock.time()
        with released_on_error(self._store.release, locked.grant):
            self._store.finish(
                locked.grant,
                _turn(parked, outbox.answer, outbox.parts, locked.conversation, now),
                now=now,
                remember_until=now + self._terms.remember_seconds,
                parked_id=parked_id,
            )
        return parked

    def drop(self, parked_id: str) -> ParkedBatch:
        """Nobody will answer it. Its messages count as processed."""
        now = self._clock.time()
        return self._store.unpark(parked_id, back_to_stage=False, now=now, expires_at=now)

    def hand_over(self, key: ConversationKey) -> bool:
        """From now on a person answers: what comes in is parked. False: no such one."""
        return self._store.set_status(key, Status.WITH_PERSON)

    def take_back(self, key: ConversationKey) -> bool:
        """From now on it is answered again. What was parked stays so: see `retry`."""
        return self._store.set_status(key, Status.REPLY_SENT)

    def _find(self, parked_id: str) -> ParkedBatch:
        for one in self._store.parked():
            if one.parked_id == parked_id:
                return one
        raise ParkedNotFound(f"nothing is parked under {parked_id!r}")

    def _lock(self, key: ConversationKey) -> LockAcquired:
        now = self._clock.time()
        expires_at = now + self._terms.lock_seconds
        answer = self._store.acquire(
            key, owner=new_id(), trigger_id=_BY_HAND, now=now, expires_at=expires_at
        )
        if isinstance(answer, LockAcquired):
            if answer.conversation.outbox is None:
                return answer
            # Another batch's reply, perhaps on its way: who clears that sends it twice.
            self._store.release(answer.grant, None)
        raise TransientError(
            "the conversation is being answered, or gone: try again in a minute"
        )


def _turn(
    parked: ParkedBatch,
    answer: WriterAnswer,
    parts: tuple[SentPart, ...],
    conversation: Conversation,
    now: float,
) -> Turn:
    fragments = in_order(one for one in parked.staged if isinstance(one, Fragment))
    text, sids = merged(fragments), parked.sids
    # Rows may have become unreadable, or be gone by a person's hand.
    first = next((row.message_sid for row in (*fragments, *parked.staged)), "")
    sid = parts[-1].message_sid if parts else ""
    status = {"status": "sent, says a person"}
    return Turn(
        sids=sids,
        user=HistoryMessage("user", text, now, first, {"sids": list(sids)}),
        assistant=HistoryMessage("assistant", answer.text, now, sid, status),
        thread_id=conversation.thread_id,
        thread_mark=conversation.thread_mark,  # parking moved it behind this reply
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
    )
