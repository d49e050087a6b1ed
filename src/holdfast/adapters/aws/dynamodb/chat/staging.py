"""Staged messages and windows: the tables before a batch."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any
from uuid import uuid4

from holdfast.adapters.aws.dynamodb.chat import conditions as when
from holdfast.adapters.aws.dynamodb.chat import items, sanitize
from holdfast.adapters.aws.dynamodb.chat.keys import stage_key
from holdfast.adapters.aws.dynamodb.chat.tables import ConversationTables
from holdfast.adapters.aws.dynamodb.client import ConditionFailed, DynamoDBClient
from holdfast.adapters.aws.dynamodb.values import Attributes, decode
from holdfast.conversations.model import (
    ConversationKey,
    Fragment,
    Staged,
    WaitingConversation,
    Window,
)


class StagingRows:
    def __init__(self, calls: DynamoDBClient, tables: ConversationTables) -> None:
        self._calls, self._tables = calls, tables

    def put(self, fragment: Fragment, expires_at: float) -> bool:
        row = items.fragment_row(fragment) | {"expires_at": sanitize.expiry(expires_at)}
        return put_new(self._calls, self._tables.stage, row, when.NEW_FRAGMENT, "the message")

    def all(self, conversation_id: str) -> list[Staged]:
        by_id = "#conversation_id = :id"
        pages = self._calls.pages(
            "query",
            TableName=self._tables.stage,
            ConsistentRead=True,  # or the message that opened this window is not seen
            KeyConditionExpression=by_id,
            **when.used({":id": conversation_id}, by_id),
        )
        return [items.staged_of(row) for row in pages]

    def drop(self, conversation_id: str, sids: Collection[str]) -> None:
        keys = [stage_key(conversation_id, sid) for sid in dict.fromkeys(sids)]
        deletes = [{"DeleteRequest": {"Key": key}} for key in keys]
        self._calls.write_many(self._tables.stage, deletes)

    def unstaged(self, conversation_id: str, sids: Iterable[str]) -> list[dict[str, Any]]:
        """Writes of a transaction."""
        keys = (stage_key(conversation_id, sid) for sid in sids)
        return [{"Delete": {"TableName": self._tables.stage, "Key": key}} for key in keys]

    def waiting(self) -> Iterator[WaitingConversation]:
        names = "#conversation_id, #primary_channel, #staged_at, #received_at"
        pages = self._calls.pages(
            "scan",
            TableName=self._tables.stage,
            ProjectionExpression=names,
            **when.used({}, names),
        )
        found: dict[str, dict[str, list[float]]] = {}
        for row in pages:
            channel = row.get("primary_channel")
            by_channel = found.setdefault(row["conversation_id"], {})
            since = items.moment(row.get("staged_at")) or items.moment(row.get("received_at"))
            by_channel.setdefault(channel if isinstance(channel, str) else "", []).append(since)
        for conversation_id, by_channel in found.items():
            yield from _waiting(conversation_id, by_channel)

    # -- windows

    def open(self, window: Window, now: float, untriggered_before: float) -> bool:
        """Asked again after a lost answer it opens the same window again."""
        values = {":now": now, ":before": untriggered_before, ":sid": window.owner_sid}
        answer = self._calls.write(
            "put_item",
            TableName=self._tables.windows,
            Item=sanitize.kept(items.window_row(window), "the window"),
            ConditionExpression=when.OPENABLE,
            **when.used(values, when.OPENABLE),
        )
        return not isinstance(answer, ConditionFailed)

    def mark_triggered(self, window: Window) -> None:
        update = "SET #triggered = :true"
        self._calls.write(
            "update_item",
            TableName=self._tables.windows,
            Key=_window_key(window.conversation_id),
            UpdateExpression=update,
            ConditionExpression=when.OF_TRIGGER,
            **when.used({":trigger": window.trigger_id}, update, when.OF_TRIGGER),
        )

    def window(self, conversation_id: str) -> Window | None:
        answer = self._calls.ask(
            "get_item",
            TableName=self._tables.windows,
            Key=_window_key(conversation_id),
            ConsistentRead=True,
        )
        row = decode(answer.get("Item"))
        return items.window_of(row) if row else None

    def close(self, conversation_id: str, trigger_id: str) -> None:
        self._calls.write(
            "delete_item",
            TableName=self._tables.windows,
            Key=_window_key(conversation_id),
            ConditionExpression=when.CLOSABLE,
            **when.used({":trigger": trigger_id}, when.CLOSABLE),
        )


def _window_key(conversation_id: str) -> Attributes:
    return {"conversation_id": {"S": conversation_id}}


def _waiting(
    conversation_id: str, by_channel: dict[str, list[float]]
) -> Iterator[WaitingConversation]:
    """Rows without a channel go with those that have one: they are staged together."""
    nameless = by_channel.pop("", [])
    for channel, times in by_channel.items() or [("", [])]:
        together, nameless = [*times, *nameless], []
        key = ConversationKey(channel, conversation_id)
        yield WaitingConversation(key, len(together), min(together))


def put_new(
    calls: DynamoDBClient, table: str, row: dict[str, Any], condition: str, what: str
) -> bool:
    """Put it if there is none.

    botocore sends a call again whose answer did not come. Then the second is refused
    because of the first: `write_id` tells this from a row of somebody else.
    """
    mine = uuid4().hex
    answer = calls.write(
        "put_item",
        TableName=table,
        Item=sanitize.kept({**row, "write_id": mine}, what),
        ConditionExpression=condition,
        **when.used({}, condition),
    )
    return not isinstance(answer, ConditionFailed) or answer.row.get("write_id") == mine
