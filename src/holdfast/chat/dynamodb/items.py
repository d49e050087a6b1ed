"""Rows of conversations, staged messages and windows as items with the seed's names, and back.

Items that other software wrote are read as far as possible. A missing attribute counts as
empty, and a staged item that is not a message becomes an unreadable row instead of an error.
Holdfast writes times as numbers; in items of other software a time may have any form that the
inbound message parser reads. An empty value is a missing attribute.

`conversation-messages` has these items:

    message#000000000007      one message
    message#000000000007#01   the rest of a long message, because an item holds 400 KB at most
    renewal                   how long the lock of this fence is renewed
    sid#SM…                   a processed (answered or parked) message; expires by `expires_at`
"""

import math
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from holdfast.chat.messages import parse_time
from holdfast.chat.model import Conversation, HistoryMessage, digest_texts
from holdfast.store.dynamodb.rows import Item
from holdfast.store.dynamodb.values import count_bytes
from holdfast.store.rows import Row

_MAX_HASH_BYTES, _MAX_RANGE_BYTES = 2048, 1024

# -- conversations

_NAMES = {"status": "conversation_status", "thread_id": "openai_thread_id"}
_COLUMNS = [field.name for field in fields(Conversation)[1:]] + ["lock_owner"]
_MAPPINGS = ("channel_config", "ai_config")
_NUMBERS = ("message_count", "prompt_tokens", "completion_tokens", "lock_fence")
_TIMES = ("lock_expires_at", "created_at", "updated_at")


def item_from_conversation(row: Row) -> Item:
    """Return the attributes of a conversation's row, or of some of its columns."""
    item = {
        _NAMES.get(name, name): value if name in _MAPPINGS else value or None
        for name, value in row.items()
        if name != "conversation_no"
    }
    return _clean(item)


def conversation_from_item(item: Item) -> Row:
    """Return the row of a conversation."""
    row: dict[str, Any] = {name: _read_text(item, _NAMES.get(name, name)) for name in _COLUMNS}
    row |= {name: _read_mapping(item.get(name)) for name in _MAPPINGS}
    row |= {name: _read_number(item, name) for name in _NUMBERS}
    row |= {name: parse_time_or_zero(item.get(name)) for name in _TIMES}
    stored = item.get("messages")
    entries = stored if isinstance(stored, list) else []
    row["messages"] = [
        message_from_item(entry) for entry in entries if isinstance(entry, Mapping)
    ]
    row["message_count"] += sum(not message["seq"] for message in row["messages"])
    row["outbox"] = item.get("outbox") or None
    key = {name: item[name] for name in ("primary_channel", "conversation_id")}
    return row | key | {"conversation_no": build_history_hash(key)}


# -- history messages, in the conversation's item and in their own items

_KNOWN_FIELDS = {field.name for field in fields(HistoryMessage)}


def message_from_item(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a history message.

    In a map that other software wrote, `content` is read as the body, and unknown fields become
    details.
    """
    others = {
        name: to_plain_json(value)
        for name, value in item.items()
        if name not in _KNOWN_FIELDS and name not in ("conversation", "entry", "content")
    }
    body = item.get("body", item.get("content"))
    return {
        "role": "assistant" if item.get("role") == "assistant" else "user",
        "body": body if isinstance(body, str) else "",
        "at": parse_time_or_zero(item.get("at", item.get("timestamp"))),
        "message_sid": _read_text(item, "message_sid"),
        "details": {**others, **_read_mapping(item.get("details"))},
        "seq": _read_number(item, "seq"),
    }


def item_from_history(row: Row) -> Item:
    """Return the attributes of a history message's row, or of some of its columns."""
    item = {
        name: value for name, value in row.items() if name not in ("conversation_no", "part")
    }
    if "conversation_no" in row:
        item["conversation"] = row["conversation_no"]
    if "seq" in row:
        part = f"#{row['part']:02}" if row.get("part") else ""
        item["entry"] = f"message#{max(0, row['seq']):012}{part}"
    if row.get("part"):
        item = {name: item[name] for name in ("conversation", "entry", "body")}
    return _clean(item)


def history_from_item(item: Item) -> Row:
    """Return the row of a history message, or of a part of it."""
    is_part = item["entry"].count("#") > 1
    return message_from_item(item) | {"part": int(is_part)}


def build_history_hash(row: Row) -> str:
    """Return the hash key of a conversation's items in `conversation-messages`.

    The line break separates the two names, because no name contains one.
    """
    names = row["primary_channel"], row["conversation_id"]
    text = "\n".join(names)
    return text if count_bytes(text) <= _MAX_HASH_BYTES else digest_texts(*names)


# -- processed messages and renewals of the lock


def item_from_mark(row: Row) -> Item:
    """Return the item that marks a message as processed, or its key."""
    sid = row["message_sid"]
    is_short = count_bytes(sid) <= _MAX_RANGE_BYTES - 4
    entry = f"sid#{sid if is_short else digest_texts(sid)}"
    item = {"conversation": build_history_hash(row), "entry": entry}
    if "expires_at" in row:
        item |= {"message_sid": sid, **_item_from_expiry(row)}
    return _clean(item)


def item_from_renewal(row: Row) -> Item:
    """Return the item of a lock's renewal, or its key."""
    item = {name: value for name, value in row.items() if name != "conversation_no"}
    return item | {"conversation": row["conversation_no"], "entry": "renewal"}


def _item_from_expiry(row: Row) -> Item:
    """Return whole seconds, as DynamoDB requires, rounded up so that no item expires early."""
    return {"expires_at": math.ceil(row["expires_at"])} if "expires_at" in row else {}


# -- staged messages


def item_from_staged(row: Row) -> Item:
    """Return the attributes of a staged message's row, or of some of its columns.

    An unreadable row goes back as it was, so that nothing is lost. It gets a channel and a
    time, so that the sweeper finds its conversation and does not treat it, and the messages
    beside it, as if they had waited for years.
    """
    item = {name: value for name, value in row.items() if name != "unreadable"}
    if unreadable := row.get("unreadable"):
        names = ("conversation_id", "message_sid", "staged_at")
        own = {name: item[name] for name in names}
        item = {"primary_channel": row["primary_channel"], **unreadable["row"], **own}
    return _clean(item) | _item_from_expiry(row)


def staged_from_item(item: Item) -> Row:
    """Return the row of a staged item."""
    received_at, problem = _find_problem(item)
    channel = item.get("primary_channel")
    row = {
        "conversation_id": item["conversation_id"],
        "message_sid": item["message_sid"],
        "primary_channel": channel if isinstance(channel, str) else "",
        "body": item.get("body") or "",
        "received_at": received_at,
        "staged_at": parse_time_or_zero(item.get("staged_at")) or received_at,
        "media": _read_texts(item.get("media")),
        "unreadable": None,
    }
    if problem:
        kept = {name: value for name, value in item.items() if name != "write_id"}
        row["unreadable"] = {
            "message_sid": item["message_sid"],
            "problem": problem,
            "row": to_plain_json(kept),
        }
    return row


def _find_problem(item: Item) -> tuple[float, str]:
    """Return when the message was received, and why the item is not a message, or ''."""
    received_at = parse_time_or_zero(item.get("received_at"))
    channel, body = item.get("primary_channel"), item.get("body")
    if not isinstance(channel, str) or not channel:
        return received_at, "primary_channel is missing or not a text"
    if not isinstance(body, str | None):
        return received_at, "body is not a text"
    if "received_at" not in item:
        return received_at, "received_at is missing"
    try:
        return parse_time(item["received_at"]), ""
    except ValueError as error:
        return received_at, f"received_at is {error}"


# -- windows


def item_from_window(row: Row) -> Item:
    """Return the attributes of a window's row, or of some of its columns.

    `expires_at` is for DynamoDB's expiry. Holdfast itself compares `open_until`, which is exact
    to the millisecond.
    """
    until = {"open_until": row["expires_at"]} if "expires_at" in row else {}
    return _clean({**row, **until}) | _item_from_expiry(row)


def window_from_item(item: Item) -> Row:
    """Return the row of a window.

    An item that does not say whether its trigger was sent counts as triggered.
    """
    return {
        "conversation_id": item["conversation_id"],
        "trigger_id": _read_text(item, "trigger_id"),
        "owner_sid": _read_text(item, "owner_sid"),
        "opened_at": parse_time_or_zero(item.get("opened_at")),
        "expires_at": parse_time_or_zero(item.get("open_until", item.get("expires_at"))),
        "triggered": bool(item.get("triggered", True)),
    }


# -- parked batches: a head, and parts with the messages


def item_from_parked(row: Row) -> Item:
    """Return the attributes of a parked row, or of some of its columns."""
    item = {name: value for name, value in row.items() if value not in (None, [])}
    if "staged" in item:
        item["staged"] = [_entry_from_message(message) for message in item["staged"]]
    return _clean(item)


def parked_from_item(item: Item) -> Row:
    """Return the row of a parked head or part."""
    conversation_id = item["conversation_id"]
    return {
        "conversation_id": conversation_id,
        "parked_id": item["parked_id"],
        "of": item.get("of"),
        "primary_channel": _read_text(item, "primary_channel"),
        "reason": _read_text(item, "reason"),
        "parked_at": parse_time_or_zero(item.get("parked_at")),
        "staged": [
            _message_from_entry(entry, conversation_id) for entry in item.get("staged", [])
        ],
        "outbox": item.get("outbox") or None,
    }


def _entry_from_message(message: Mapping[str, Any]) -> Item:
    """Return a parked message as it is stored: its conversation's id is in the item."""
    if "row" in message:
        return {**message, "row": to_plain_json(message["row"])}
    entry = {name: value for name, value in message.items() if name != "key"}
    return entry | {"primary_channel": message["key"]["primary_channel"]}


def _message_from_entry(entry: Mapping[str, Any], conversation_id: str) -> Mapping[str, Any]:
    row = (
        {}
        if "row" in entry
        else staged_from_item({**entry, "conversation_id": conversation_id})
    )
    unreadable: Mapping[str, Any] | None = row["unreadable"] if row else entry
    if unreadable:
        return unreadable
    names = ("primary_channel", "conversation_id")
    key = {name: row[name] for name in names}
    message = {name: value for name, value in row.items() if name not in (*names, "unreadable")}
    return message | {"key": key}


# -- values


def parse_time_or_zero(value: Any) -> float:
    """Return a time in epoch seconds, or 0 for a value that is not a time."""
    try:
        return parse_time(value)
    except ValueError:
        return 0.0


def _read_text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    return value if isinstance(value, str) else ""


def _read_number(item: Mapping[str, Any], name: str) -> int:
    value = item.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _read_mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _read_texts(value: Any) -> list[str]:
    entries = value if isinstance(value, list | tuple) else []
    return [text for text in entries if isinstance(text, str)]


def _clean(item: Mapping[str, Any]) -> Item:
    """Return the item with lone surrogates replaced.

    A model may write half of a surrogate pair, and no store accepts it. The reply has already
    been sent then, so storing its history must not fail.
    """
    return {name: _replace_lone_surrogates(value) for name, value in item.items()}


def _replace_lone_surrogates(value: Any) -> Any:
    match value:
        case str():
            return value if value.isascii() else value.encode(errors="replace").decode()
        case Mapping():
            return {
                _replace_lone_surrogates(name): _replace_lone_surrogates(element)
                for name, element in value.items()
            }
        case list() | tuple():
            return [_replace_lone_surrogates(element) for element in value]
    return value


def to_plain_json(value: Any) -> Any:
    """Return a stored value as JSON types, because other software may have stored bytes."""
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
