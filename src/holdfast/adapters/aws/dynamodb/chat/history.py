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
from holdfast.adapters.aws.dynamodb.chat.keys import build_history_hash, build_sid_key
from holdfast.adapters.aws.dynamodb.chat.tables import ConversationTables
from holdfast.adapters.aws.dynamodb.client import DynamoDBClient
from holdfast.adapters.aws.dynamodb.values import Attributes, encode
from holdfast.conversations.model import ConversationKey, HistoryMessage

_MAX_KEYS_PER_READ = 100  # DynamoDB's limit for one BatchGetItem
_MAX_SEQ = 10**12 - 1
_MAX_BODY_CHARS = 75_000  # at most four bytes each, which leaves room for the details


class HistoryRows:
    """The rows of `conversation-messages`, and the writes that change them."""

    def __init__(self, client: DynamoDBClient, tables: ConversationTables) -> None:
        self._client, self._table = client, tables.messages

    # -- reading

    def read_last(
        self, key: ConversationKey, before: int | None, limit: int
    ) -> list[HistoryMessage]:
        """Return the last `limit` messages before `before`, in order.

        The query reads backwards and skips other rows and page boundaries.
        """
        key_condition = "#conversation = :conversation AND #entry BETWEEN :first AND :last"
        highest = _MAX_SEQ if before is None else min(before - 1, _MAX_SEQ)
        values = {
            ":conversation": build_history_hash(key),
            ":first": _format_entry(0),
            ":last": _format_entry(highest) + "$",  # sorts after every `#`
        }
        pages = self._client.read_pages(
            "query",
            TableName=self._table,
            ConsistentRead=True,
            ScanIndexForward=False,
            KeyConditionExpression=key_condition,
            Limit=max(1, limit),  # the page size; a long message has several rows
            **conditions.bind_values(values, key_condition),
        )
        newest_first = list(islice(_join_rows(pages), max(0, limit)))
        return newest_first[::-1]

    def read_processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Return those of the sids that were answered or parked already."""
        keys = [build_sid_key(key, sid) for sid in dict.fromkeys(sids)]
        processed: set[str] = set()
        for start in range(0, len(keys), _MAX_KEYS_PER_READ):
            rows = self._client.read_rows(self._table, keys[start : start + _MAX_KEYS_PER_READ])
            processed |= {row["message_sid"] for row in rows}
        return processed

    # -- writes of a transaction

    def build_puts(self, key: ConversationKey, message: HistoryMessage) -> list[dict[str, Any]]:
        """Return the writes that add a message to the history, for a transaction."""
        return [
            {
                "Put": {
                    "TableName": self._table,
                    "Item": row,
                    "ConditionExpression": conditions.NEW_MESSAGE,
                    **conditions.bind_values({}, conditions.NEW_MESSAGE),
                }
            }
            for row in _rows_from_message(key, message)
        ]

    def build_processed_puts(
        self, key: ConversationKey, sids: Iterable[str], until: float, *, new: bool = False
    ) -> list[dict[str, Any]]:
        """Return the writes that mark sids as processed, for a transaction.

        With `new`, the whole transaction is refused if one of the sids is marked already.
        """
        condition: dict[str, Any] = {}
        if new:
            condition = {"ConditionExpression": conditions.NEW_MESSAGE}
            condition |= conditions.bind_values({}, conditions.NEW_MESSAGE)
        return [
            {
                "Put": {
                    "TableName": self._table,
                    "Item": build_sid_key(key, sid)
                    | encode(
                        {"message_sid": sid, "expires_at": sanitize.to_expiry_seconds(until)}
                    ),
                    **condition,
                }
            }
            for sid in sids
        ]

    def build_processed_deletes(
        self, key: ConversationKey, sids: Iterable[str]
    ) -> list[dict[str, Any]]:
        """Return the writes that make sids unprocessed again, for a transaction."""
        keys = (build_sid_key(key, sid) for sid in sids)
        return [{"Delete": {"TableName": self._table, "Key": sid_key}} for sid_key in keys]

    # -- messages that other software put into the conversation's row

    def adopt_messages(self, key: ConversationKey, messages: Iterable[HistoryMessage]) -> None:
        """Copy messages to the history, because the row keeps only the recent ones.

        Repeating it is safe, because the numbers are fixed while the lock is held.
        """
        rows = [row for message in messages for row in _rows_from_message(key, message)]
        self._client.write_many(self._table, [{"PutRequest": {"Item": row}} for row in rows])


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
