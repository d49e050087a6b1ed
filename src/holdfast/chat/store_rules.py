"""How each call of a store changes a conversation, as pure functions.

A store runs each of them in a transaction, so that the conversation it reads is the current
one.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import count

from holdfast.chat.model import (
    Conversation,
    Fragment,
    HistoryMessage,
    LockGrant,
    ParkedBatch,
    Staged,
    Status,
    Turn,
    Window,
    keep_recent_messages,
    make_parked_id,
)
from holdfast.chat.outbox import get_thread_mark


def keep_initial_fields(given: Conversation) -> Conversation:
    """Return the conversation with only those fields that a new one may set."""
    return Conversation(
        given.key,
        given.channel_config,
        given.ai_config,
        given.status,
        created_at=given.created_at,
        updated_at=given.updated_at,
    )


def is_blocking(
    existing: Window, wanted: Window, now: float, untriggered_before: float
) -> bool:
    """Check whether an existing window keeps another one from being opened."""
    if existing.expires_at < now:
        return False
    if existing.triggered:
        return True
    # The process that opened it crashed before it sent the trigger, or it is being called
    # again in order to send it.
    same_owner = existing.owner_sid == wanted.owner_sid
    return not same_owner and not existing.opened_at < untriggered_before


# -- the lock


def acquire_lock(
    conversation: Conversation, trigger_id: str, now: float, expires_at: float
) -> Conversation:
    """Return the conversation with a new lock and a higher fence."""
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


def has_lock(grant: LockGrant, conversation: Conversation, owner: str) -> bool:
    """Check whether the grant holds the conversation's lock.

    Without the owner, two stores that lost their fences could accept two grants. Without the
    fence, an owner that uses its name twice could hold two.
    """
    return (
        conversation.status == Status.PROCESSING
        and conversation.lock_fence == grant.fence
        and owner == grant.owner
    )


def choose_released_status(previous: str, status: str | None) -> str:
    """Return the status of a conversation whose lock is released.

    A conversation that is assigned to a person, before or meanwhile, stays assigned.
    """
    keep_previous = status is None or previous == Status.WITH_PERSON
    return previous if keep_previous else str(status)


def release_lock(conversation: Conversation, status: str | None, now: float) -> Conversation:
    """Return the conversation without its lock."""
    return replace(
        conversation,
        status=choose_released_status(conversation.previous_status, status),
        previous_status="",
        lock_trigger="",
        lock_expires_at=0.0,
        updated_at=now,
    )


def set_status(conversation: Conversation, status: str, now: float) -> Conversation:
    """Return the conversation with the status that an operator chose.

    While the lock is held, the status takes effect when the lock is released.
    """
    if conversation.status == Status.PROCESSING:
        return replace(conversation, previous_status=str(status), updated_at=now)
    return replace(conversation, status=str(status), updated_at=now)


# -- the batch


def finish_turn(
    conversation: Conversation, turn: Turn, now: float
) -> tuple[Conversation, tuple[HistoryMessage, HistoryMessage]]:
    """Return the conversation after the turn, and the turn's two messages, numbered."""
    last = conversation.message_count
    pair = replace(turn.user, seq=last + 1), replace(turn.assistant, seq=last + 2)
    after = replace(
        conversation,
        messages=keep_recent_messages([*conversation.messages, *pair]),
        message_count=last + 2,
        thread_id=turn.thread_id,
        thread_mark=turn.thread_mark,
        last_assistant_message_sid=turn.assistant.message_sid,
        prompt_tokens=conversation.prompt_tokens + turn.prompt_tokens,
        completion_tokens=conversation.completion_tokens + turn.completion_tokens,
        outbox=None,
    )
    return release_lock(after, Status.REPLY_SENT, now), pair


def number_messages(conversation: Conversation, last_seq: int) -> Conversation:
    """Return the conversation with numbers for those of its messages that have none.

    `last_seq` is the highest number in the history, or 0.
    """
    unnumbered = sum(not message.seq for message in conversation.messages)
    numbers = count(max(conversation.message_count - unnumbered, last_seq) + 1)
    messages = tuple(
        message if message.seq else replace(message, seq=next(numbers))
        for message in conversation.messages
    )
    return replace(conversation, messages=messages, message_count=next(numbers) - 1)


def park_batch(conversation: Conversation, batch: ParkedBatch) -> Conversation:
    """Return the conversation after the batch it was answering is parked."""
    mark = get_thread_mark(batch.outbox) or conversation.thread_mark
    after = replace(conversation, outbox=None, thread_mark=mark)
    return release_lock(after, Status.PARKED, batch.parked_at)


def drop_processed(batch: ParkedBatch, known: Collection[str]) -> ParkedBatch:
    """Return the batch without the messages that were answered or parked meanwhile.

    Its id becomes that of the messages that are left. The complete batch may already be
    parked under the old id, so the rest would be mistaken for it.
    """
    left = tuple(row for row in batch.staged if row.message_sid not in known)
    if left == batch.staged:
        return batch
    left_id = make_parked_id(batch.key, (row.message_sid for row in left))
    return replace(batch, parked_id=left_id, staged=left)


def restage(parked: Iterable[Staged], now: float) -> list[Staged]:
    """Return messages of a parked batch as they are staged again.

    A row that cannot be read goes back unchanged, because a newer version may be able to
    read it.
    """
    return [replace(row, staged_at=now) if isinstance(row, Fragment) else row for row in parked]
