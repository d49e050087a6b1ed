"""Convert conversations, staged messages and windows to rows with the seed's names, and back.

Rows that other software wrote are read as far as possible. A missing attribute counts as
empty, and a staged row that is not a message becomes `UnreadableFragment` instead of an
error. Holdfast writes times as numbers; in rows of other software a time may have any form
that the inbound message parser reads.
"""

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from holdfast.chat import rows
from holdfast.chat.errors import PermanentError
from holdfast.chat.messages import parse_time
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockGrant,
    Staged,
    Status,
    UnreadableFragment,
    Window,
    digest_texts,
)
from holdfast.chat.outbox import Outbox, outbox_from_data
from holdfast.errors import InvalidInput
from holdfast.store.dynamodb.values import (
    Attributes,
    count_bytes,
    encode,
    measure_size,
)

Row = Mapping[str, Any]

MAX_ROW_BYTES = 400 * 1024
_MAX_HASH_BYTES, _MAX_RANGE_BYTES = 2048, 1024  # bytes

# -- keys, within DynamoDB's limits on their length


def build_conversation_key(key: ConversationKey) -> Attributes:
    """Return the key of a conversation's row."""
    return {
        "primary_channel": {"S": key.primary_channel},
        "conversation_id": {"S": key.conversation_id},
    }


def is_valid_key(key: ConversationKey) -> bool:
    """Return whether DynamoDB can hold a row with this key."""
    hash_bytes, range_bytes = (
        count_bytes(key.primary_channel),
        count_bytes(key.conversation_id),
    )
    return 0 < hash_bytes <= _MAX_HASH_BYTES and 0 < range_bytes <= _MAX_RANGE_BYTES


def build_stage_key(conversation_id: str, sid: str) -> Attributes:
    """Return the key of a staged message's row."""
    return {"conversation_id": {"S": conversation_id}, "message_sid": {"S": sid}}


def build_history_hash(key: ConversationKey) -> str:
    """Return the hash key of the conversation's rows in `conversation-messages`.

    The line break separates the two names, because no name contains one.
    """
    text = f"{key.primary_channel}\n{key.conversation_id}"
    short = count_bytes(text) <= _MAX_HASH_BYTES
    return text if short else digest_texts(key.primary_channel, key.conversation_id)


def build_sid_key(key: ConversationKey, sid: str) -> Attributes:
    """Return the key of the row that marks a sid as processed."""
    entry = (
        f"sid#{sid}" if count_bytes(sid) <= _MAX_RANGE_BYTES - 4 else f"sid#{digest_texts(sid)}"
    )
    return {"conversation": {"S": build_history_hash(key)}, "entry": {"S": entry}}


# -- staged messages


def row_from_fragment(fragment: Fragment) -> dict[str, Any]:
    """Return the staged row of a fragment."""
    return {
        "conversation_id": fragment.key.conversation_id,
        "message_sid": fragment.message_sid,
        "primary_channel": fragment.key.primary_channel,
        "body": fragment.body,
        "received_at": fragment.received_at,
        "staged_at": fragment.staged_at,
        "media": list(fragment.media),
    }


def staged_from_row(row: Row) -> Staged:
    """Return the fragment of a staged row, or UnreadableFragment if it is not a message."""
    sid = row["message_sid"]
    try:
        return _fragment_from_row(sid, row)
    except ValueError as error:
        return UnreadableFragment(sid, str(error), to_plain_json(row))


def _fragment_from_row(sid: str, row: Row) -> Fragment:
    """Return the fragment. Raises ValueError, whose text contains nothing of the row."""
    channel, body = row.get("primary_channel"), row.get("body")
    if not isinstance(channel, str) or not channel:
        raise ValueError("primary_channel is missing or not a text")
    if not isinstance(body, str | None):
        raise ValueError("body is not a text")
    if "received_at" not in row:
        raise ValueError("received_at is missing")
    try:
        received_at = parse_time(row["received_at"])
    except ValueError as error:
        raise ValueError(f"received_at is {error}") from None
    key = ConversationKey(channel, row["conversation_id"])
    staged_at = parse_time_or_zero(row.get("staged_at")) or received_at
    return Fragment(key, sid, body or "", received_at, staged_at, _read_texts(row.get("media")))


def _read_texts(value: Any) -> tuple[str, ...]:
    is_sequence = isinstance(value, list | tuple)
    return tuple(text for text in value if isinstance(text, str)) if is_sequence else ()


def parse_time_or_zero(value: Any) -> float:
    """Return a time in epoch seconds, or 0 for a value that is not a time."""
    try:
        return parse_time(value)
    except ValueError:
        return 0.0


# -- windows


def row_from_window(window: Window) -> dict[str, Any]:
    """Return the row of a window.

    `expires_at` is for DynamoDB's expiry. Holdfast itself compares `open_until`, which is exact
    to the millisecond.
    """
    until = window.expires_at
    return rows.row_from_window(window) | {
        "open_until": until,
        "expires_at": to_expiry_seconds(until),
    }


def window_from_row(row: Row) -> Window:
    """Return the window of a row.

    A row that does not say whether its trigger was sent counts as triggered.
    """
    return Window(
        row["conversation_id"],
        _read_text(row, "trigger_id"),
        _read_text(row, "owner_sid"),
        parse_time_or_zero(row.get("opened_at")),
        parse_time_or_zero(row.get("open_until", row.get("expires_at"))),
        bool(row.get("triggered", True)),
    )


# -- conversations


def row_from_conversation(conversation: Conversation) -> dict[str, Any]:
    """Return the row of a new conversation."""
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


def conversation_from_row(row: Row) -> Conversation:
    """Return the conversation of a row.

    Raises PermanentError if its outbox cannot be read, because ignoring the outbox could send a
    reply twice.
    """
    return Conversation(
        key=ConversationKey(row["primary_channel"], row["conversation_id"]),
        channel_config=_read_mapping(row.get("channel_config")),
        ai_config=_read_mapping(row.get("ai_config")),
        status=_read_text(row, "conversation_status"),
        previous_status=_read_text(row, "previous_status"),
        messages=read_recent_messages(row),
        message_count=count_messages(row),
        thread_id=_read_text(row, "openai_thread_id"),
        thread_mark=_read_text(row, "thread_mark"),
        last_assistant_message_sid=_read_text(row, "last_assistant_message_sid"),
        prompt_tokens=read_number(row, "prompt_tokens"),
        completion_tokens=read_number(row, "completion_tokens"),
        outbox=outbox_from_row(row),
        lock_trigger=_read_text(row, "lock_trigger"),
        lock_expires_at=parse_time_or_zero(row.get("lock_expires_at")),
        lock_fence=read_number(row, "lock_fence"),
        created_at=parse_time_or_zero(row.get("created_at")),
        updated_at=parse_time_or_zero(row.get("updated_at")),
    )


def count_messages(row: Row) -> int:
    """Return the number of messages, including unnumbered ones that the seed's Lambda put in
    the row.
    """
    counted = read_number(row, "message_count")
    return counted + sum(not message.seq for message in read_recent_messages(row))


def read_recent_messages(row: Row) -> tuple[HistoryMessage, ...]:
    """Return the messages that are stored in the conversation's row."""
    stored = row.get("messages")
    entries = stored if isinstance(stored, list) else []
    return tuple(message_from_row(entry) for entry in entries if isinstance(entry, Mapping))


def outbox_from_row(row: Row) -> Outbox | None:
    """Return the outbox of a row, if it has one. Raises PermanentError if it cannot be read."""
    if not (stored := row.get("outbox")):
        return None
    try:
        return outbox_from_data(stored)
    except (KeyError, TypeError, ValueError):
        raise PermanentError(
            "the conversation's outbox cannot be read; a newer version may have written it"
        ) from None


def is_held_by(row: Row, grant: LockGrant) -> bool:
    """Return whether this grant holds the lock, as LOCK_HELD does, for a row that was read."""
    held = row.get("lock_owner"), row.get("lock_fence"), row.get("conversation_status")
    return held == (grant.owner, grant.fence, Status.PROCESSING.value)


# -- history messages, in the conversation's row and in their own rows

_KNOWN_FIELDS = {field.name for field in fields(HistoryMessage)}


def message_from_row(row: Row) -> HistoryMessage:
    """Return the message of a row.

    In a map that other software wrote, `content` is read as the body, and unknown fields become
    details.
    """
    others = {
        name: to_plain_json(value) for name, value in row.items() if name not in _KNOWN_FIELDS
    }
    body = row.get("body", row.get("content"))
    return HistoryMessage(
        "assistant" if row.get("role") == "assistant" else "user",
        body if isinstance(body, str) else "",
        parse_time_or_zero(row.get("at", row.get("timestamp"))),
        _read_text(row, "message_sid"),
        {**others, **_read_mapping(row.get("details"))},
        read_number(row, "seq"),
    )


def _read_text(row: Row, name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def read_number(row: Row, name: str) -> int:
    """Return an integer attribute, or 0 if it is missing or not an integer."""
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _read_mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


# -- values in a form that DynamoDB can store


def encode_row(
    row: Mapping[str, Any], subject: str, max_bytes: int = MAX_ROW_BYTES
) -> Attributes:
    """Return the row as DynamoDB attributes.

    Raises PermanentError if the row is too large or holds a value that DynamoDB cannot store,
    because a retry would not help.
    """
    try:
        attributes = encode(replace_lone_surrogates(row))
    except InvalidInput as error:
        raise PermanentError(f"{subject} cannot be stored: {error}") from None
    if (size := measure_size(attributes)) > max_bytes:
        raise PermanentError(
            f"{subject} is too large: it has {size} bytes, the limit is {max_bytes}"
        )
    return attributes


def replace_lone_surrogates(value: Any) -> Any:
    """Return the value with lone surrogates replaced.

    A model may write half of a surrogate pair, and no store accepts it. The reply has already
    been sent then, so storing its history must not fail.
    """
    match value:
        case str():
            return value if value.isascii() else value.encode(errors="replace").decode()
        case Mapping():
            return {
                replace_lone_surrogates(name): replace_lone_surrogates(element)
                for name, element in value.items()
            }
        case list() | tuple():
            return [replace_lone_surrogates(element) for element in value]
    return value


def estimate_size(value: Any) -> int:
    """Return the approximate bytes of a value in a row, rather too many than too few."""
    return len(json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace"))


def to_expiry_seconds(seconds: float) -> int:
    """Return whole seconds, as DynamoDB requires.

    They are rounded up, so that a row never expires too early.
    """
    return math.ceil(seconds)


def to_plain_json(value: Any) -> Any:
    """Return a stored value as JSON types, because rows of other software may contain bytes."""
    match value:
        case Mapping():
            return {str(name): to_plain_json(element) for name, element in value.items()}
        case list() | tuple() | set():
            return [to_plain_json(element) for element in value]
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return b64encode(value).decode()
    return str(value)
