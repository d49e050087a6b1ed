"""Format conversations for a terminal and for scripts.

Phone numbers and addresses are masked by default, because terminals are shared, filmed and
pasted into tickets. Bodies are shown, without anything that could control the terminal.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.chat.formatting import (
    format_body,
    format_status,
    get_received_at,
    mask_address,
)
from holdfast.chat.model import redact_id
from holdfast.chat.outbox import get_outbox_state
from holdfast.cli.formatting import format_age, format_duration
from holdfast.lease.clock import to_utc
from holdfast.text import format_count

if TYPE_CHECKING:
    from holdfast.chat.model import (
        Conversation,
        HistoryMessage,
        ParkedBatch,
        Staged,
        Window,
    )

HEADINGS = ("conversation", "customer", "status", "messages", "staged", "last change")


def format_address(conversation: "Conversation", full: bool) -> str:
    """Return the customer's address, masked unless `full`."""
    address = conversation.key.primary_channel
    return address if full else mask_address(address)


def format_id(conversation_id: str, full: bool) -> str:
    """Return a conversation's id, redacted unless `full`."""
    return conversation_id if full else redact_id(conversation_id)


def conversation_to_row(
    conversation: "Conversation", staged: int, now: float, full: bool
) -> list[str]:
    """Return the conversation's cells for a table."""
    return [
        format_id(conversation.key.conversation_id, full),
        format_address(conversation, full),
        format_status(conversation, now),
        f"{conversation.message_count:,}",
        f"{staged:,}" if staged else "-",
        _format_ago(conversation.updated_at, now),
    ]


def _format_ago(at: float, now: float) -> str:
    """Return how long ago a time was, or - for none."""
    return f"{format_age(at, now)} ago" if at else "-"


def format_moment(at: float) -> str:
    """Return a time as date and time in UTC."""
    return f"{to_utc(at):%Y-%m-%d %H:%M:%S}"


def describe_conversation(
    conversation: "Conversation", window: "Window | None", now: float, full: bool
) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) for each fact of the conversation."""
    yield "conversation", format_id(conversation.key.conversation_id, full)
    yield "customer", f"{format_address(conversation, full)} ({conversation.key.channel})"
    yield "status", format_status(conversation, now)
    if conversation.is_locked(now):
        left = format_duration(conversation.lock_expires_at - now)
        yield "lock", f"ends in {left}, unless it is renewed"
    if (outbox := conversation.outbox) is not None:
        messages = format_count(len(outbox.sids), "message")
        yield "reply", f"{get_outbox_state(outbox)}, to {messages}"
    yield "window", _format_window(window, now)
    yield "messages", f"{conversation.message_count:,}"
    tokens = (conversation.prompt_tokens, conversation.completion_tokens)
    yield "tokens", f"{tokens[0]:,} read, {tokens[1]:,} written"
    if conversation.thread_id:
        yield "thread", conversation.thread_id
    yield "started", _format_ago(conversation.created_at, now)
    yield "last change", _format_ago(conversation.updated_at, now)


def _format_window(window: "Window | None", now: float) -> str:
    if window is None or window.expires_at <= now:
        return "none open"
    sent = "its trigger is in the queue" if window.triggered else "its trigger is not sent yet"
    return f"open for {format_age(window.opened_at, now)}; {sent}"


def format_lines(speaker: str, at: float, body: str) -> Iterator[str]:
    """Yield the lines of a body, after a time and a speaker."""
    first, *others = body.splitlines() or [""]
    margin = f"{format_moment(at)}  {speaker:<8}  "
    yield f"{margin}{first}"
    for line in others:
        yield f"{'':<{len(margin)}}{line}"


def format_history(message: "HistoryMessage") -> Iterator[str]:
    """Yield the lines of a message of the history."""
    speaker = "reply" if message.role == "assistant" else "customer"
    return format_lines(speaker, message.at, message.body)


def format_staged(speaker: str, staged: "Staged") -> Iterator[str]:
    """Yield the lines of a staged message."""
    return format_lines(speaker, get_received_at(staged), format_body(staged))


# -- for scripts


def conversation_to_json(conversation: "Conversation", full: bool) -> dict[str, Any]:
    """Return the conversation as JSON."""
    return {
        "conversation": format_id(conversation.key.conversation_id, full),
        "customer": format_address(conversation, full),
        "channel": conversation.key.channel.value,
        "status": conversation.status,
        "messages": conversation.message_count,
        "prompt_tokens": conversation.prompt_tokens,
        "completion_tokens": conversation.completion_tokens,
        "outbox": None
        if conversation.outbox is None
        else get_outbox_state(conversation.outbox),
        "lock_expires_at": conversation.lock_expires_at or None,
        "created_at": conversation.created_at,
        "updated_at": conversation.updated_at,
    }


def history_to_json(message: "HistoryMessage") -> dict[str, Any]:
    """Return a message of the history as JSON."""
    return {"seq": message.seq, "role": message.role, "at": message.at, "body": message.body}


def parked_to_json(parked: "ParkedBatch", full: bool) -> dict[str, Any]:
    """Return a parked batch as JSON."""
    return {
        "parked": parked.parked_id,
        "conversation": format_id(parked.key.conversation_id, full),
        "reason": parked.reason,
        "parked_at": parked.parked_at,
        "messages": [format_body(staged) for staged in parked.staged],
        "reply": None if parked.outbox is None else get_outbox_state(parked.outbox),
    }
