"""Conversations, staged messages and windows as rows, with the seed's names, and back.

Rows that others wrote are read as far as they can be: what a row does not have is empty,
and a staged row that is no message is `UnreadableFragment`, not an error. Times are numbers here and
whatever `instant` reads in rows of others.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb.chat.sanitize import expiry, plain
from holdfast.conversations.errors import PermanentError
from holdfast.conversations.messages import instant
from holdfast.conversations.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockGrant,
    Staged,
    Status,
    UnreadableFragment,
    Window,
)
from holdfast.conversations.outbox import Outbox, outbox_of

Row = Mapping[str, Any]

# -- staged messages


def fragment_row(fragment: Fragment) -> dict[str, Any]:
    return {
        "conversation_id": fragment.key.conversation_id,
        "message_sid": fragment.message_sid,
        "primary_channel": fragment.key.primary_channel,
        "body": fragment.body,
        "received_at": fragment.received_at,
        "staged_at": fragment.staged_at,
        "media": list(fragment.media),
    }


def staged_of(row: Row) -> Staged:
    sid = row["message_sid"]
    try:
        return _fragment_of(sid, row)
    except ValueError as error:
        return UnreadableFragment(sid, str(error), plain(row))


def _fragment_of(sid: str, row: Row) -> Fragment:
    """Raises ValueError, without what is in the row."""
    channel, body = row.get("primary_channel"), row.get("body")
    if not isinstance(channel, str) or not channel:
        raise ValueError("primary_channel is missing or no text")
    if not isinstance(body, str | None):
        raise ValueError("body is no text")
    if "received_at" not in row:
        raise ValueError("received_at is missing")
    try:
        received_at = instant(row["received_at"])
    except ValueError as error:
        raise ValueError(f"received_at is {error}") from None
    key = ConversationKey(channel, row["conversation_id"])
    staged_at = moment(row.get("staged_at")) or received_at
    return Fragment(key, sid, body or "", received_at, staged_at, _texts(row.get("media")))


def _texts(value: Any) -> tuple[str, ...]:
    several = isinstance(value, list | tuple)
    return tuple(one for one in value if isinstance(one, str)) if several else ()


def moment(value: Any) -> float:
    """0 for what is no time."""
    try:
        return instant(value)
    except ValueError:
        return 0.0


# -- windows


def window_row(window: Window) -> dict[str, Any]:
    """`expires_at` is for DynamoDB; `open_until` is what counts, to the millisecond."""
    return {
        "conversation_id": window.conversation_id,
        "trigger_id": window.trigger_id,
        "owner_sid": window.owner_sid,
        "opened_at": window.opened_at,
        "open_until": window.expires_at,
        "expires_at": expiry(window.expires_at),
        "triggered": window.triggered,
    }


def window_of(row: Row) -> Window:
    """Of a row that does not say whether its trigger was sent: it was."""
    return Window(
        row["conversation_id"],
        _text(row, "trigger_id"),
        _text(row, "owner_sid"),
        moment(row.get("opened_at")),
        moment(row.get("open_until", row.get("expires_at"))),
        bool(row.get("triggered", True)),
    )


# -- conversations


def new_row(conversation: Conversation) -> dict[str, Any]:
    status = {"conversation_status": conversation.status} if conversation.status else {}
    return {
        "primary_channel": conversation.key.primary_channel,
        "conversation_id": conversation.key.conversation_id,
        "channel_config": dict(conversation.channel_config),
        "ai_config": dict(conversation.ai_config),
        "created_at": conversation.created_at,
        "updated_at": conversation.updated_at,
        **status,
    }


def conversation_of(row: Row) -> Conversation:
    """Raises PermanentError when its outbox cannot be read: to take it for none could send a
    reply twice."""
    return Conversation(
        key=ConversationKey(row["primary_channel"], row["conversation_id"]),
        channel_config=_mapping(row.get("channel_config")),
        ai_config=_mapping(row.get("ai_config")),
        status=_text(row, "conversation_status"),
        previous_status=_text(row, "previous_status"),
        messages=tail_in(row),
        message_count=count_in(row),
        thread_id=_text(row, "openai_thread_id"),
        thread_mark=_text(row, "thread_mark"),
        last_assistant_message_sid=_text(row, "last_assistant_message_sid"),
        prompt_tokens=number_in(row, "prompt_tokens"),
        completion_tokens=number_in(row, "completion_tokens"),
        outbox=outbox_in(row),
        lock_trigger=_text(row, "lock_trigger"),
        lock_expires_at=moment(row.get("lock_expires_at")),
        lock_fence=number_in(row, "lock_fence"),
        created_at=moment(row.get("created_at")),
        updated_at=moment(row.get("updated_at")),
    )


def count_in(row: Row) -> int:
    """How many messages there are. A row of the seed's has no number, and all of them."""
    numbered = number_in(row, "message_count")
    return numbered + sum(not one.seq for one in tail_in(row))


def tail_in(row: Row) -> tuple[HistoryMessage, ...]:
    found = row.get("messages")
    maps = found if isinstance(found, list) else []
    return tuple(message_of(one) for one in maps if isinstance(one, Mapping))


def outbox_in(row: Row) -> Outbox | None:
    if not (found := row.get("outbox")):
        return None
    try:
        return outbox_of(found)
    except (KeyError, TypeError, ValueError):
        raise PermanentError(
            "its outbox cannot be read: was it written by newer code?"
        ) from None


def held_by(row: Row, grant: LockGrant) -> bool:
    """The lock is this grant's: MINE, for a row that was read."""
    held = row.get("lock_owner"), row.get("lock_fence"), row.get("conversation_status")
    return held == (grant.owner, grant.fence, Status.PROCESSING.value)


# -- messages of the history, in the tail and in rows of their own

_NAMED = {"role", "body", "at", "message_sid", "details", "seq"}


def message_row(message: HistoryMessage) -> dict[str, Any]:
    return {
        "role": message.role,
        "body": message.body,
        "at": message.at,
        "message_sid": message.message_sid,
        "details": dict(message.details),
        "seq": message.seq,
    }


def message_of(row: Row) -> HistoryMessage:
    """Of others' maps: `content` is a body, too, and what has no name here is a detail."""
    others = {name: plain(one) for name, one in row.items() if name not in _NAMED}
    body = row.get("body", row.get("content"))
    return HistoryMessage(
        "assistant" if row.get("role") == "assistant" else "user",
        body if isinstance(body, str) else "",
        moment(row.get("at", row.get("timestamp"))),
        _text(row, "message_sid"),
        {**others, **_mapping(row.get("details"))},
        number_in(row, "seq"),
    )


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def number_in(row: Row, name: str) -> int:
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
