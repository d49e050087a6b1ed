"""Messages of the history as rows of `conversation-messages`, and the sids beside them.

message#000000000007      one message
message#000000000007#01   the rest of a long one: a row holds 400 KB
sid#SM…                   processed: answered or parked; forgotten by `expires_at`
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from holdfast.adapters.aws.dynamodb.chat import conditions as when
from holdfast.adapters.aws.dynamodb.chat import items, sanitize
from holdfast.adapters.aws.dynamodb.chat.keys import messages_of, sid_key
from holdfast.adapters.aws.dynamodb.chat.tables import ConversationTables
from holdfast.adapters.aws.dynamodb.client import DynamoDBClient
from holdfast.adapters.aws.dynamodb.values import Attributes, encode
from holdfast.conversations.model import ConversationKey, HistoryMessage

_AT_ONCE = 100  # keys of one BatchGetItem
_LAST = 10**12 - 1
_PIECE = 75_000  # characters of one row; four bytes each at worst, and details beside them


class HistoryRows:
    def __init__(self, calls: DynamoDBClient, tables: ConversationTables) -> None:
        self._calls, self._table = calls, tables.messages

    # -- reading

    def last(
        self, key: ConversationKey, before: int | None, limit: int
    ) -> list[HistoryMessage]:
        """From the end, whatever lies between: other rows, other pages."""
        within = "#conversation = :conversation AND #entry BETWEEN :first AND :last"
        highest = _LAST if before is None else min(before - 1, _LAST)
        values = {
            ":conversation": messages_of(key),
            ":first": _entry(0),
            ":last": _entry(highest) + "$",  # after every `#`
        }
        pages = self._calls.pages(
            "query",
            TableName=self._table,
            ConsistentRead=True,
            ScanIndexForward=False,
            KeyConditionExpression=within,
            Limit=max(1, limit),  # of a page; long messages have more rows
            **when.used(values, within),
        )
        found = list(islice(_joined(pages), max(0, limit)))
        return found[::-1]

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        keys = [sid_key(key, sid) for sid in dict.fromkeys(sids)]
        found: set[str] = set()
        for start in range(0, len(keys), _AT_ONCE):
            rows = self._calls.rows(self._table, keys[start : start + _AT_ONCE])
            found |= {row["message_sid"] for row in rows}
        return found

    # -- writes of a transaction

    def puts(self, key: ConversationKey, message: HistoryMessage) -> list[dict[str, Any]]:
        return [
            {
                "Put": {
                    "TableName": self._table,
                    "Item": row,
                    "ConditionExpression": when.NEW_MESSAGE,
                    **when.used({}, when.NEW_MESSAGE),
                }
            }
            for row in _rows(key, message)
        ]

    def remembered(
        self, key: ConversationKey, sids: Iterable[str], until: float, *, new: bool = False
    ) -> list[dict[str, Any]]:
        """`new`: refused, the whole transaction, when one of them is known already."""
        condition: dict[str, Any] = {}
        if new:
            condition = {"ConditionExpression": when.NEW_MESSAGE}
            condition |= when.used({}, when.NEW_MESSAGE)
        return [
            {
                "Put": {
                    "TableName": self._table,
                    "Item": sid_key(key, sid)
                    | encode({"message_sid": sid, "expires_at": sanitize.expiry(until)}),
                    **condition,
                }
            }
            for sid in sids
        ]

    def forgotten(self, key: ConversationKey, sids: Iterable[str]) -> list[dict[str, Any]]:
        keys = (sid_key(key, sid) for sid in sids)
        return [{"Delete": {"TableName": self._table, "Key": one}} for one in keys]

    # -- messages that somebody else put into the row

    def adopt(self, key: ConversationKey, messages: Iterable[HistoryMessage]) -> None:
        """Keep them: the row's tail forgets. Safe to repeat, as their numbers are fixed
        while the lock is held."""
        rows = [row for message in messages for row in _rows(key, message)]
        self._calls.write_many(self._table, [{"PutRequest": {"Item": row}} for row in rows])


def _entry(seq: int) -> str:
    return f"message#{max(0, seq):012}"


def _rows(key: ConversationKey, message: HistoryMessage) -> list[Attributes]:
    """One row, and others for what one does not hold."""
    first, *rest = [
        message.body[start : start + _PIECE]
        for start in range(0, len(message.body) or 1, _PIECE)
    ]
    conversation, entry = messages_of(key), _entry(message.seq)
    head = items.message_row(replace(message, body=first))
    rows = [{"conversation": conversation, "entry": entry, **head}]
    rows += [
        {"conversation": conversation, "entry": f"{entry}#{number:02}", "body": body}
        for number, body in enumerate(rest, 1)
    ]
    return [sanitize.kept(row, "a message of the history") for row in rows]


def _joined(rows: Iterable[items.Row]) -> Iterator[HistoryMessage]:
    """Rows come last first, so the rest of a message comes before its beginning."""
    rest = ""
    for row in rows:
        if row["entry"].count("#") > 1:
            rest = row["body"] + rest
            continue
        message = items.message_of(_without_key(row))
        yield replace(message, body=message.body + rest) if rest else message
        rest = ""


def _without_key(row: items.Row) -> dict[str, Any]:
    return {name: one for name, one in row.items() if name not in ("conversation", "entry")}
