"""Convert conversations and their messages to rows, and back."""

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from holdfast.chat import store_rules as rules
from holdfast.chat.errors import PermanentError
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    ParkedBatch,
    Staged,
    UnreadableFragment,
    WaitingConversation,
    Window,
)
from holdfast.chat.outbox import Outbox, outbox_from_data, to_plain_data
from holdfast.store.rows import Row

# Columns have the names of fields.
_CONSTANT = ("channel_config", "ai_config", "created_at")
_MUTABLE = [field.name for field in fields(Conversation)[1:] if field.name not in _CONSTANT]
_MESSAGE = [field.name for field in fields(HistoryMessage)]
_WINDOW = [field.name for field in fields(Window)]


def row_from_key(key: ConversationKey) -> dict[str, Any]:
    """Return the columns that identify a conversation."""
    return {"conversation_id": key.conversation_id, "primary_channel": key.primary_channel}


def _key_from_row(row: Row) -> ConversationKey:
    return ConversationKey(row["primary_channel"], row["conversation_id"])


# -- conversations


def row_from_conversation(conversation: Conversation) -> dict[str, Any]:
    """Return the row of a new conversation, whose lock is free."""
    new = rules.keep_initial_fields(conversation)
    return {
        **row_from_key(new.key),
        "channel_config": dict(new.channel_config),
        "ai_config": dict(new.ai_config),
        "created_at": new.created_at,
        **{name: _to_plain(name, getattr(new, name)) for name in _MUTABLE},
        "lock_owner": "",
    }


def find_changes(before: Conversation, after: Conversation) -> dict[str, Any]:
    """Return only the columns that changed.

    The recent messages are long, and most writes do not change them.
    """
    return {
        name: _to_plain(name, value)
        for name in _MUTABLE
        if (value := getattr(after, name)) != getattr(before, name)
    }


def _to_plain(name: str, value: Any) -> Any:
    if name == "messages":
        return [row_from_message(message) for message in value]
    return row_from_outbox(value) if name == "outbox" else value


def conversation_from_row(row: Row) -> Conversation:
    """Return the conversation of a row."""
    columns = {name: row[name] for name in (*_CONSTANT, *_MUTABLE)}
    columns["messages"] = tuple(HistoryMessage(**message) for message in row["messages"])
    columns["outbox"] = outbox_from_row(row)
    return Conversation(_key_from_row(row), **columns)


def row_from_outbox(outbox: Outbox | None) -> dict[str, Any] | None:
    """Return the column of an outbox."""
    return None if outbox is None else to_plain_data(outbox)


def outbox_from_row(row: Row) -> Outbox | None:
    """Return the outbox of a row, if it has one.

    Raises PermanentError if it cannot be read, because ignoring it could send a reply twice.
    """
    if row["outbox"] is None:
        return None
    try:
        return outbox_from_data(row["outbox"])
    except (KeyError, TypeError, ValueError):
        raise PermanentError(
            "the conversation's outbox cannot be read; a newer version may have written it"
        ) from None


# -- the history


def row_from_message(message: HistoryMessage) -> dict[str, Any]:
    """Return the message as plain values, without `asdict`.

    `asdict` copies deeply and was a third of the cost of a turn.
    """
    return {name: getattr(message, name) for name in _MESSAGE}


def row_from_history(conversation_no: int, message: HistoryMessage) -> dict[str, Any]:
    """Return the message as a row of the history.

    Lone surrogates are replaced, because the reply has been sent and its history must be
    stored.
    """
    row = row_from_message(message)
    body = message.body.encode(errors="replace").decode()
    return row | {"conversation_no": conversation_no, "body": body}


def message_from_row(row: Row) -> HistoryMessage:
    """Return the history message of a row."""
    return HistoryMessage(**{name: row[name] for name in _MESSAGE})


# -- windows and staged rows


def row_from_window(window: Window) -> dict[str, Any]:
    """Return the row of a window."""
    return {name: getattr(window, name) for name in _WINDOW}


def window_from_row(row: Row) -> Window:
    """Return the window of a row."""
    return Window(**{**row, "triggered": bool(row["triggered"])})


def row_from_staged(
    staged: Staged, key: ConversationKey, staged_at: float, expires_at: float
) -> dict[str, Any]:
    """Return the row of a staged message.

    `key` and `staged_at` stand in for values that an unreadable row does not have.
    """
    row = {
        **row_from_key(key),
        **dict.fromkeys(("body", "received_at", "media", "unreadable")),
        "message_sid": staged.message_sid,
        "staged_at": staged_at,
        "expires_at": expires_at,
    }
    if isinstance(staged, UnreadableFragment):
        return row | {"unreadable": _row_from_unreadable(staged)}
    media = list(staged.media)
    return row | {"body": staged.body, "received_at": staged.received_at, "media": media}


def staged_from_row(row: Row) -> Staged:
    """Return the fragment of a row.

    A damaged row, or a row of other software, becomes UnreadableFragment, so that the other
    rows can still be read.
    """
    problem = "the row is damaged"
    try:
        if row["unreadable"] is not None:
            return _unreadable_from_row(row["unreadable"])
        problem = "a column has a value of the wrong type"
        return Fragment(
            _key_from_row(row),
            row["message_sid"],
            _require_text(row["body"]),
            received_at=float(row["received_at"]),
            staged_at=float(row["staged_at"]),
            media=tuple(_require_text(kind) for kind in _require_list(row["media"])),
        )
    except (ValueError, TypeError, KeyError):
        return UnreadableFragment(str(row["message_sid"]), problem, row)


def _require_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _require_list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _row_from_unreadable(staged: UnreadableFragment) -> dict[str, Any]:
    return {
        "message_sid": staged.message_sid,
        "problem": staged.problem,
        "row": dict(staged.row),
    }


def _unreadable_from_row(row: Row) -> UnreadableFragment:
    return UnreadableFragment(row["message_sid"], row["problem"], dict(row["row"]))


# -- parked batches


def row_from_parked(parked: ParkedBatch) -> dict[str, Any]:
    """Return the row of a parked batch."""
    return {
        "parked_id": parked.parked_id,
        **row_from_key(parked.key),
        "reason": parked.reason,
        "parked_at": parked.parked_at,
        "staged": [
            _row_from_unreadable(staged)
            if isinstance(staged, UnreadableFragment)
            else asdict(staged)
            for staged in parked.staged
        ],
        "outbox": row_from_outbox(parked.outbox),
    }


def batches_from_rows(rows: Iterable[Row]) -> list[ParkedBatch]:
    """Return the parked batches. A row may be a part of the batch that its `of` names."""
    heads: list[Row] = []
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if of := row.get("of"):
            parts.setdefault((row["conversation_id"], of), []).append(row)
        else:
            heads.append(row)
    return [
        _batch_from_rows(head, parts.get((head["conversation_id"], head["parked_id"]), []))
        for head in heads
    ]


def _batch_from_rows(head: Row, parts: Iterable[Row]) -> ParkedBatch:
    in_order = [head, *sorted(parts, key=lambda part: str(part["parked_id"]))]
    return ParkedBatch(
        head["parked_id"],
        _key_from_row(head),
        head["reason"],
        head["parked_at"],
        tuple(message for row in in_order for message in parked_messages_from_row(row)),
        outbox_from_row(head),
    )


def parked_messages_from_row(row: Row) -> list[Staged]:
    """Return the messages in a row of a parked batch."""
    return [_parked_message_from_row(staged) for staged in row["staged"]]


def _parked_message_from_row(row: Row) -> Staged:
    if "row" in row:
        return _unreadable_from_row(row)
    key, media = ConversationKey(**row["key"]), tuple(row["media"])
    return Fragment(**{**row, "key": key, "media": media})


# -- a summary of staged rows


def summarize_staged(rows: Iterable[Row]) -> list[WaitingConversation]:
    """Return the conversations that have staged rows.

    Rows of other software may have no channel. They join the first channel of their
    conversation, because they are answered with it.
    """
    times: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        by_channel = times.setdefault(row["conversation_id"], {})
        by_channel.setdefault(row["primary_channel"], []).append(_read_time(row["staged_at"]))
    waiting = []
    for conversation_id, by_channel in times.items():
        nameless = by_channel.pop("", [])
        for channel, staged_at in by_channel.items() or [("", [])]:
            all_times, nameless = [*staged_at, *nameless], []
            key = ConversationKey(channel, conversation_id)
            waiting.append(WaitingConversation(key, len(all_times), min(all_times)))
    return waiting


def _read_time(value: Any) -> float:
    """Return a time, or 0 for a value of other software that is not one, as for an old row."""
    return float(value) if isinstance(value, int | float) else 0.0
