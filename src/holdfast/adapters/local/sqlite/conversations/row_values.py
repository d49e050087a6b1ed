"""Convert conversations and their messages to rows, and back."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from holdfast.adapters.local.sqlite.database import Row
from holdfast.conversations.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    ParkedBatch,
    Staged,
    UnreadableFragment,
)
from holdfast.conversations.outbox import Outbox, outbox_from_data, to_plain_data

# The columns that change during a conversation's life. They have the names of fields.
_MUTABLE_COLUMNS = (
    "status",
    "previous_status",
    "messages",
    "message_count",
    "thread_id",
    "thread_mark",
    "last_assistant_message_sid",
    "prompt_tokens",
    "completion_tokens",
    "outbox",
    "lock_trigger",
    "lock_expires_at",
    "lock_fence",
    "updated_at",
)

_MESSAGE_FIELDS = ("role", "body", "at", "message_sid", "details", "seq")


def row_from_conversation(conversation: Conversation) -> dict[str, Any]:
    """Return the row of a new conversation."""
    return {
        "conversation_id": conversation.key.conversation_id,
        "primary_channel": conversation.key.primary_channel,
        "channel_config": json.dumps(dict(conversation.channel_config)),
        "ai_config": json.dumps(dict(conversation.ai_config)),
        "status": conversation.status,
        "created_at": conversation.created_at,
        "updated_at": conversation.updated_at,
    }


def find_changes(before: Conversation, after: Conversation) -> dict[str, Any]:
    """Return only the columns that changed.

    The recent messages are long, and most writes do not change them.
    """
    return {
        name: _encode_column(name, value)
        for name in _MUTABLE_COLUMNS
        if (value := getattr(after, name)) != getattr(before, name)
    }


def _encode_column(name: str, value: Any) -> Any:
    if name == "messages":
        return json.dumps([_message_to_dict(message) for message in value])
    return dump_outbox(value) if name == "outbox" else value


def _message_to_dict(message: HistoryMessage) -> dict[str, Any]:
    """Return the message as a dict, without `asdict`.

    `asdict` copies deeply and was a third of the cost of a turn.
    """
    return {name: getattr(message, name) for name in _MESSAGE_FIELDS}


def conversation_from_row(row: Row) -> Conversation:
    """Return the conversation of a row."""
    return Conversation(
        key=ConversationKey(row["primary_channel"], row["conversation_id"]),
        channel_config=json.loads(row["channel_config"]),
        ai_config=json.loads(row["ai_config"]),
        created_at=row["created_at"],
        **{name: row[name] for name in _MUTABLE_COLUMNS if name not in ("messages", "outbox")},
        messages=tuple(HistoryMessage(**message) for message in json.loads(row["messages"])),
        outbox=load_outbox(row["outbox"]),
    )


def dump_outbox(outbox: Outbox | None) -> str | None:
    """Return the outbox as JSON text, or None if there is none."""
    return None if outbox is None else json.dumps(to_plain_data(outbox))


def load_outbox(column: str | None) -> Outbox | None:
    """Return the outbox of a JSON text, or None if there is none."""
    return None if column is None else outbox_from_data(json.loads(column))


# -- the history


def row_from_message(conversation_no: int, message: HistoryMessage) -> dict[str, Any]:
    """Return the row of a history message."""
    return {
        "conversation_no": conversation_no,
        "seq": message.seq,
        "role": message.role,
        "body": _replace_lone_surrogates(message.body),
        "at": message.at,
        "message_sid": message.message_sid,
        "details": json.dumps(dict(message.details)),
    }


def _replace_lone_surrogates(text: str) -> str:
    """Replace lone surrogates, because the reply has been sent and its history must
    be stored.
    """
    return text.encode("utf-8", "replace").decode()


def message_from_row(row: Row) -> HistoryMessage:
    """Return the history message of a row."""
    details = json.loads(row["details"])
    return HistoryMessage(
        row["role"], row["body"], row["at"], row["message_sid"], details, row["seq"]
    )


# -- staged rows


def row_from_staged(
    row: Staged, key: ConversationKey, staged_at: float, expires_at: float
) -> dict[str, Any]:
    """Return the row of a staged message.

    `key` and `staged_at` stand in for values that an unreadable row does not have.
    """
    columns: dict[str, Any] = dict.fromkeys(("body", "received_at", "media", "unreadable"))
    if isinstance(row, Fragment):
        columns |= {
            "body": row.body,
            "received_at": row.received_at,
            "media": json.dumps(row.media),
        }
    else:
        columns["unreadable"] = json.dumps(_unreadable_to_dict(row), default=str)
    return columns | {
        "conversation_id": key.conversation_id,
        "message_sid": row.message_sid,
        "primary_channel": key.primary_channel,
        "staged_at": staged_at,
        "expires_at": expires_at,
    }


def staged_from_row(row: Row) -> Staged:
    """Return the fragment of a row.

    A damaged row, or a row of other software, becomes UnreadableFragment, so that the other
    rows can still be read.
    """
    if row["unreadable"] is not None:
        return _unreadable_from_row(row)
    try:
        return Fragment(
            ConversationKey(row["primary_channel"], row["conversation_id"]),
            row["message_sid"],
            _require_text(row["body"]),
            received_at=float(row["received_at"]),
            staged_at=float(row["staged_at"]),
            media=tuple(_require_text(url) for url in json.loads(row["media"])),
        )
    except (ValueError, TypeError):
        return UnreadableFragment(
            str(row["message_sid"]), "a column has a value of the wrong type", row
        )


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _unreadable_from_row(row: Row) -> UnreadableFragment:
    try:
        return _unreadable_from_dict(json.loads(row["unreadable"]))
    except (ValueError, TypeError, KeyError):
        return UnreadableFragment(str(row["message_sid"]), "the row is damaged", row)


def _unreadable_to_dict(row: UnreadableFragment) -> dict[str, Any]:
    return {"message_sid": row.message_sid, "problem": row.problem, "row": dict(row.row)}


def _unreadable_from_dict(data: Mapping[str, Any]) -> UnreadableFragment:
    return UnreadableFragment(data["message_sid"], data["problem"], dict(data["row"]))


# -- parked batches


def row_from_parked(parked: ParkedBatch) -> dict[str, Any]:
    """Return the row of a parked batch."""
    rows = [_staged_to_dict(row) for row in parked.staged]
    return {
        "parked_id": parked.parked_id,
        "conversation_id": parked.key.conversation_id,
        "primary_channel": parked.key.primary_channel,
        "reason": parked.reason,
        "parked_at": parked.parked_at,
        "staged": json.dumps(rows, default=str),
        "outbox": dump_outbox(parked.outbox),
    }


def _staged_to_dict(row: Staged) -> dict[str, Any]:
    return _unreadable_to_dict(row) if isinstance(row, UnreadableFragment) else asdict(row)


def parked_from_row(row: Row) -> ParkedBatch:
    """Return the parked batch of a row."""
    return ParkedBatch(
        row["parked_id"],
        ConversationKey(row["primary_channel"], row["conversation_id"]),
        row["reason"],
        row["parked_at"],
        tuple(_staged_from_dict(staged) for staged in json.loads(row["staged"])),
        load_outbox(row["outbox"]),
    )


def _staged_from_dict(data: dict[str, Any]) -> Staged:
    if "row" in data:
        return _unreadable_from_dict(data)
    key, media = ConversationKey(**data["key"]), tuple(data["media"])
    return Fragment(**{**data, "key": key, "media": media})
