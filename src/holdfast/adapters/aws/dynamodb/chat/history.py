"""History messages and processed sids as rows of `conversation-messages`.

message#000000000007      one message
message#000000000007#01   the rest of a long message, because a row holds at most 400 KB
sid#SM…                   a processed (answered or parked) message; expires by `expires_at`
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from holdfast.adapters.aws.dynamodb.chat import conditions, items, sanitize
from holdfast.adapters.aws.dynamodb.chat.conditions import CALLS
from holdfast.adapters.aws.dynamodb.chat.keys import build_history_hash, build_sid_key
from holdfast.adapters.aws.dynamodb.chat.rows import LockingStore
from holdfast.adapters.aws.dynamodb.chat.staging import Write
from holdfast.adapters.aws.dynamodb.values import Attributes, encode
from holdfast.conversations.model import ConversationKey, HistoryMessage

_MAX_SEQ = 10**12 - 1
_MAX_BODY_CHARS = 75_000  # at most four bytes each, which leaves room for the details


class HistoryStore(LockingStore):
    """The part of the store that has the history and the processed sids."""

    # -- reading

    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        """Return up to `limit` history messages in order."""
        messages = self._read_last_messages(key, before, limit)
        if messages or before is not None or limit < 1:
            return messages
        # The seed's Lambda keeps the messages in the row. The first turn that Holdfast finishes
        # moves them.
        return list(items.read_recent_messages(self._read_conversation(key))[-limit:])

    def _read_last_messages(
        self, key: ConversationKey, before: int | None, limit: int
    ) -> list[HistoryMessage]:
        """Return the last `limit` messages before `before`, in order.

        The query reads backwards and skips other rows and page boundaries.
        """
        highest = _MAX_SEQ if before is None else min(before - 1, _MAX_SEQ)
        query = CALLS.query(
            self._tables.messages,
            "#conversation = :conversation AND #entry BETWEEN :first AND :last",
            {
                ":conversation": build_history_hash(key),
                ":first": _format_entry(0),
                ":last": _format_entry(highest) + "$",  # sorts after every `#`
            },
            ConsistentRead=True,
            ScanIndexForward=False,
            Limit=max(1, limit),  # the page size; a long message has several rows
        )
        pages = self._client.read_pages("query", **query)
        newest_first = list(islice(_join_rows(pages), max(0, limit)))
        return newest_first[::-1]

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Return those of the sids that were answered or parked already."""
        keys = [build_sid_key(key, sid) for sid in dict.fromkeys(sids)]
        rows = self._client.read_rows(self._tables.messages, keys)
        return {row["message_sid"] for row in rows}

    # -- writes of a transaction

    def _build_message_puts(self, key: ConversationKey, message: HistoryMessage) -> list[Write]:
        """Return the writes that add a message to the history, for a transaction."""
        return [
            {"Put": CALLS.put(self._tables.messages, row, conditions.NEW_MESSAGE)}
            for row in _rows_from_message(key, message)
        ]

    def _build_processed_puts(
        self, key: ConversationKey, sids: Iterable[str], until: float, *, new: bool = False
    ) -> list[Write]:
        """Return the writes that mark sids as processed, for a transaction.

        With `new`, the whole transaction is refused if one of the sids is marked already.
        """
        condition = conditions.NEW_MESSAGE if new else ""
        expires_at = sanitize.to_expiry_seconds(until)
        rows = (
            build_sid_key(key, sid) | encode({"message_sid": sid, "expires_at": expires_at})
            for sid in sids
        )
        return [{"Put": CALLS.put(self._tables.messages, row, condition)} for row in rows]

    def _build_processed_deletes(
        self, key: ConversationKey, sids: Iterable[str]
    ) -> list[Write]:
        """Return the writes that make sids unprocessed again, for a transaction."""
        keys = (build_sid_key(key, sid) for sid in sids)
        return [{"Delete": CALLS.delete(self._tables.messages, sid_key)} for sid_key in keys]

    # -- messages that other software put into the conversation's row

    def _adopt_messages(self, key: ConversationKey, messages: Iterable[HistoryMessage]) -> None:
        """Copy messages to the history, because the row keeps only the recent ones.

        Repeating it is safe, because the numbers are fixed while the lock is held.
        """
        rows = [row for message in messages for row in _rows_from_message(key, message)]
        puts = [{"PutRequest": {"Item": row}} for row in rows]
        self._client.write_many(self._tables.messages, puts)


def _format_entry(seq: int) -> str:
    return f"message#{max(0, seq):012}"


def _rows_from_message(key: ConversationKey, message: HistoryMessage) -> list[Attributes]:
    """Return the row of a message, and further rows if the body does not fit into one."""
    first, *rest = [
        message.body[start : start + _MAX_BODY_CHARS]
        for start in range(0, len(message.body) or 1, _MAX_BODY_CHARS)
    ]
    conversation, entry = build_history_hash(key), _format_entry(message.seq)
    head = items.row_from_message(replace(message, body=first))
    rows = [{"conversation": conversation, "entry": entry, **head}]
    rows += [
        {"conversation": conversation, "entry": f"{entry}#{number:02}", "body": body}
        for number, body in enumerate(rest, 1)
    ]
    return [sanitize.encode_row(row, "a history message") for row in rows]


def _join_rows(rows: Iterable[items.Row]) -> Iterator[HistoryMessage]:
    """Yield the messages of these rows.

    The rows arrive in descending order, so the rest of a message precedes its beginning.
    """
    rest = ""
    for row in rows:
        if row["entry"].count("#") > 1:
            rest = row["body"] + rest
            continue
        message = items.message_from_row(_drop_key(row))
        yield replace(message, body=message.body + rest) if rest else message
        rest = ""


def _drop_key(row: items.Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("conversation", "entry")}
