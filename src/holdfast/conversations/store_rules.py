"""What the calls of a store make of a conversation. Values in, values out.

A store puts a transaction around each, so that the conversation it sees is the one there is.
DynamoDB cannot: its conditions say the same, and the contract suite compares the two.
"""

from collections.abc import Collection
from dataclasses import replace

from holdfast.conversations.model import (
    Conversation,
    Fragment,
    HistoryMessage,
    LockGrant,
    ParkedBatch,
    Staged,
    Status,
    Turn,
    Window,
    parked_id_of,
)
from holdfast.conversations.outbox import Outbox, mark_in
from holdfast.conversations.recent_history import recent_messages


def created(given: Conversation) -> Conversation:
    """Only what a new one may bring along."""
    return Conversation(
        given.key,
        given.channel_config,
        given.ai_config,
        given.status,
        created_at=given.created_at,
        updated_at=given.updated_at,
    )


def in_the_way(open_one: Window, wanted: Window, now: float, untriggered_before: float) -> bool:
    if open_one.expires_at < now:
        return False
    if open_one.triggered:
        return True
    # Whoever opened it died before he sent its trigger, or comes again to send it.
    own = open_one.owner_sid == wanted.owner_sid
    return not own and not open_one.opened_at < untriggered_before


# -- the lock


def acquired(
    conversation: Conversation, trigger_id: str, now: float, expires_at: float
) -> Conversation:
    taken_over = conversation.status == Status.PROCESSING
    before = conversation.previous_status if taken_over else conversation.status
    return replace(
        conversation,
        status=Status.PROCESSING.value,
        previous_status=before,
        lock_trigger=trigger_id,
        lock_expires_at=expires_at,
        lock_fence=conversation.lock_fence + 1,
        updated_at=now,
    )


def holds(grant: LockGrant, conversation: Conversation, owner: str) -> bool:
    """Without the owner two stores that lost their fences could let in two; without the
    fence an owner that uses a name twice could."""
    return (
        conversation.status == Status.PROCESSING
        and conversation.lock_fence == grant.fence
        and owner == grant.owner
    )


def status_after(previous: str, status: str | None) -> str:
    """Return the status of a conversation whose lock is given back.

    A person who took over meanwhile, or before, keeps the conversation.
    """
    as_before = status is None or previous == Status.WITH_PERSON
    return previous if as_before else str(status)


def freed(conversation: Conversation, status: str | None, now: float) -> Conversation:
    return replace(
        conversation,
        status=status_after(conversation.previous_status, status),
        previous_status="",
        lock_trigger="",
        lock_expires_at=0.0,
        updated_at=now,
    )


def told(conversation: Conversation, status: str, now: float) -> Conversation:
    """With the status a person gave it."""
    if conversation.status == Status.PROCESSING:
        return replace(conversation, previous_status=str(status), updated_at=now)
    return replace(conversation, status=str(status), updated_at=now)


# -- the batch


def noted(
    conversation: Conversation, outbox: Outbox, thread_id: str, now: float
) -> Conversation:
    return replace(conversation, outbox=outbox, thread_id=thread_id, updated_at=now)


def finished(
    conversation: Conversation, turn: Turn, now: float
) -> tuple[Conversation, tuple[HistoryMessage, HistoryMessage]]:
    """The conversation after the turn, and its two messages with their numbers."""
    count = conversation.message_count
    pair = replace(turn.user, seq=count + 1), replace(turn.assistant, seq=count + 2)
    after = replace(
        conversation,
        messages=recent_messages(conversation.messages, pair),
        message_count=count + 2,
        thread_id=turn.thread_id,
        thread_mark=turn.thread_mark,
        last_assistant_message_sid=turn.assistant.message_sid,
        prompt_tokens=conversation.prompt_tokens + turn.prompt_tokens,
        completion_tokens=conversation.completion_tokens + turn.completion_tokens,
        outbox=None,
    )
    return freed(after, Status.REPLY_SENT, now), pair


def parked(conversation: Conversation, batch: ParkedBatch) -> Conversation:
    mark = mark_in(batch.outbox) or conversation.thread_mark
    after = replace(conversation, outbox=None, thread_mark=mark)
    return freed(after, Status.PARKED, batch.parked_at)


def still_open(batch: ParkedBatch, known: Collection[str]) -> ParkedBatch:
    """Return the batch without the messages that were answered or parked meanwhile.

    Its id becomes that of the messages that are left: under the old id the whole batch may
    be parked already, and these messages would be taken for it.
    """
    left = tuple(row for row in batch.staged if row.message_sid not in known)
    if left == batch.staged:
        return batch
    left_id = parked_id_of(batch.key, (row.message_sid for row in left))
    return replace(batch, parked_id=left_id, staged=left)


def staged_again(parked: ParkedBatch, now: float) -> list[Staged]:
    """A row nobody can read goes back as it was: somebody may have learned to read it."""
    return [
        replace(row, staged_at=now) if isinstance(row, Fragment) else row
        for row in parked.staged
    ]
