"""Messages of the history as rows of `conversation-messages`, and the sids beside them.

message#000000000007      one message
message#000000000007#01   the rest of a long one: a row holds 400 KB
sid#SM…                   processed: answered or parked; forgotten by `expires_at`
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

_MAX_KEYS_PER_READ = 100  # keys of one BatchGetItem
_MAX_SEQ = 10**12 - 1
_MAX_BODY_CHARS = (
    75_000  # characters of one row; four bytes each at worst, and details beside them
)


class HistoryRows:
    def __init__(self, client: DynamoDBClient, tables: ConversationTables) -> None:
        self._client, self._table = client, tables.messages

    # -- reading

    def read_last(
        self, key: ConversationKey, before: int | None, limit: int
    ) -> list[HistoryMessage]:
        """From the end, whatever lies between: other rows, other pages."""
        within = "#conversation = :conversation AND #entry BETWEEN :first AND :last"
        highest = _MAX_SEQ if before is None else min(before - 1, _MAX_SEQ)
        values = {
            ":conversation": build_history_hash(key),
            ":first": _format_entry(0),
            ":last": _format_entry(highest) + "$",  # after every `#`
        }
        pages = self._client.read_pages(
            "query",
            TableName=self._table,
            ConsistentRead=True,
            ScanIndexForward=False,
            KeyConditionExpression=within,
            Limit=max(1, limit),  # of a page; long messages have more rows
            **conditions.bind_values(values, within),
        )
        found = list(islice(_join_rows(pages), max(0, limit)))
        return found[::-1]

    def read_processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        keys = [build_sid_key(key, sid) for sid in dict.fromkeys(sids)]
        found: set[str] = set()
        for start in range(0, len(keys), _MAX_KEYS_PER_READ):
            rows = self._client.read_rows(self._table, keys[start : start + _MAX_KEYS_PER_READ])
            found |= {row["message_sid"] for row in rows}
        return found

    # -- writes of a transaction

    def build_puts(self, key: ConversationKey, message: HistoryMessage) -> list[dict[str, Any]]:
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
        """`new`: refused, the whole transaction, when one of them is known already."""
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
        keys = (build_sid_key(key, sid) for sid in sids)
        return [{"Delete": {"TableName": self._table, "Key": one}} for one in keys]

    # -- messages that somebody else put into the row

    def adopt_messages(self, key: ConversationKey, messages: Iterable[HistoryMessage]) -> None:
        """Keep them: the row's tail forgets. Safe to repeat, as their numbers are fixed
        while the lock is held."""
        rows = [row for message in messages for row in _rows_from_message(key, message)]
        self._client.write_many(self._table, [{"PutRequest": {"Item": row}} for row in rows])


def _format_entry(seq: int) -> str:
    return f"message#{max(0, seq):012}"


def _rows_from_message(key: ConversationKey, message: HistoryMessage) -> list[Attributes]:
    """One row, and others for what one does not hold."""
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
    return [sanitize.encode_row(row, "a message of the history") for row in rows]


def _join_rows(rows: Iterable[items.Row]) -> Iterator[HistoryMessage]:
    """Rows come last first, so the rest of a message comes before its beginning."""
    rest = ""
    for row in rows:
        if row["entry"].count("#") > 1:
            rest = row["body"] + rest
            continue
        message = items.message_from_row(_drop_key(row))
        yield replace(message, body=message.body + rest) if rest else message
        rest = ""


def _drop_key(row: items.Row) -> dict[str, Any]:
    return {name: one for name, one in row.items() if name not in ("conversation", "entry")}
