"""Conversations in words, for the person at the terminal.

Numbers and addresses are masked unless asked for: a terminal is shared, filmed, pasted
into tickets. Bodies are shown, but cannot do anything to the terminal.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.cli.console import strip_control_characters
from holdfast.cli.durations import in_words
from holdfast.conversations.model import Fragment, Status, redacted_id
from holdfast.conversations.outbox import state_of
from holdfast.core.clock import utc

if TYPE_CHECKING:
    from holdfast.conversations.model import (
        Conversation,
        HistoryMessage,
        ParkedBatch,
        Staged,
        Window,
    )

HEADINGS = ("conversation", "customer", "status", "messages", "staged", "last change")
_NUMBER = re.compile(r"\+?\d[\d ().\-/]{5,}\d")


def masked(address: str) -> str:
    """whatsapp:+4930…89, a…@example.org; what is no number stays."""
    name, at, host = address.rpartition("@")
    if at:
        return f"{name[:1]}…@{host}"
    return _NUMBER.sub(lambda number: f"{number[0][:3]}…{number[0][-2:]}", address)


def address_of(conversation: "Conversation", full: bool) -> str:
    address = conversation.key.primary_channel
    return address if full else masked(address)


def id_of(conversation_id: str, full: bool) -> str:
    return conversation_id if full else redacted_id(conversation_id)


def row_of(conversation: "Conversation", staged: int, now: float, full: bool) -> list[str]:
    return [
        id_of(conversation.key.conversation_id, full),
        address_of(conversation, full),
        status_of(conversation, now),
        f"{conversation.message_count:,}",
        f"{staged:,}" if staged else "-",
        ago(conversation.updated_at, now),
    ]


def status_of(conversation: "Conversation", now: float) -> str:
    if conversation.status != Status.PROCESSING:
        return conversation.status or "new"
    if conversation.locked(now):
        return "being answered"
    return "left in the middle: taken over by the next trigger"


def ago(at: float, now: float) -> str:
    return f"{in_words(max(0.0, now - at))} ago" if at else "-"


def moment(at: float) -> str:
    return f"{utc(at):%Y-%m-%d %H:%M:%S}"


def story(
    conversation: "Conversation", window: "Window | None", now: float, full: bool
) -> Iterator[tuple[str, str]]:
    yield "conversation", id_of(conversation.key.conversation_id, full)
    yield "customer", f"{address_of(conversation, full)} ({conversation.key.channel})"
    yield "status", status_of(conversation, now)
    if conversation.locked(now):
        left = in_words(conversation.lock_expires_at - now)
        yield "lock", f"for another {left}, unless it is renewed"
    if (outbox := conversation.outbox) is not None:
        yield "reply", f"{state_of(outbox)}, to {len(outbox.sids)} messages"
    yield "window", _window(window, now)
    yield "messages", f"{conversation.message_count:,}"
    tokens = (conversation.prompt_tokens, conversation.completion_tokens)
    yield "tokens", f"{tokens[0]:,} read, {tokens[1]:,} written"
    if conversation.thread_id:
        yield "thread", conversation.thread_id
    yield "begun", ago(conversation.created_at, now)
    yield "last change", ago(conversation.updated_at, now)


def _window(window: "Window | None", now: float) -> str:
    if window is None or window.expires_at <= now:
        return "none open"
    sent = "its trigger is in the queue" if window.triggered else "its trigger is not sent yet"
    return f"open, since {in_words(max(0.0, now - window.opened_at))}; {sent}"


def lines_of(who: str, at: float, body: str) -> Iterator[str]:
    """A body, harmless, its lines kept."""
    first, *others = body.splitlines() or [""]
    margin = f"{moment(at)}  {who:<8}  "
    yield f"{margin}{strip_control_characters(first)}"
    for line in others:
        yield f"{'':<{len(margin)}}{strip_control_characters(line)}"


def said(message: "HistoryMessage") -> Iterator[str]:
    who = "reply" if message.role == "assistant" else "customer"
    return lines_of(who, message.at, message.body)


def body_of(one: "Staged") -> str:
    if not isinstance(one, Fragment):
        return f"(cannot be read: {one.problem})"
    media = "".join(f" [{kind}]" for kind in one.media)
    return f"{one.body}{media}"


def staged_at(one: "Staged") -> float:
    return one.received_at if isinstance(one, Fragment) else 0.0


# -- for scripts


def as_json(conversation: "Conversation", full: bool) -> dict[str, Any]:
    return {
        "conversation": id_of(conversation.key.conversation_id, full),
        "customer": address_of(conversation, full),
        "channel": conversation.key.channel.value,
        "status": conversation.status,
        "messages": conversation.message_count,
        "prompt_tokens": conversation.prompt_tokens,
        "completion_tokens": conversation.completion_tokens,
        "outbox": None if conversation.outbox is None else state_of(conversation.outbox),
        "lock_expires_at": conversation.lock_expires_at or None,
        "created_at": conversation.created_at,
        "updated_at": conversation.updated_at,
    }


def message_json(message: "HistoryMessage") -> dict[str, Any]:
    return {"seq": message.seq, "role": message.role, "at": message.at, "body": message.body}


def parked_json(parked: "ParkedBatch", full: bool) -> dict[str, Any]:
    return {
        "parked": parked.parked_id,
        "conversation": id_of(parked.key.conversation_id, full),
        "reason": parked.reason,
        "parked_at": parked.parked_at,
        "messages": [body_of(one) for one in parked.staged],
        "reply": None if parked.outbox is None else state_of(parked.outbox),
    }
