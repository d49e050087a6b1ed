"""The tables of staged messages and windows."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any
from uuid import uuid4

from holdfast.adapters.aws.dynamodb.chat import conditions, items, sanitize
from holdfast.adapters.aws.dynamodb.chat.keys import build_stage_key
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
    """The rows of `conversations-stage` and `conversations-trigger-lock`."""

    def __init__(self, client: DynamoDBClient, tables: ConversationTables) -> None:
        self._client, self._tables = client, tables

    def put_fragment(self, fragment: Fragment, expires_at: float) -> bool:
        """Stage a fragment. Return False if it is staged already."""
        row = items.row_from_fragment(fragment) | {
            "expires_at": sanitize.to_expiry_seconds(expires_at)
        }
        return put_if_new(
            self._client, self._tables.stage, row, conditions.NEW_FRAGMENT, "the message"
        )

    def read_all(self, conversation_id: str) -> list[Staged]:
        """Return every staged row of a conversation."""
        key_condition = "#conversation_id = :id"
        pages = self._client.read_pages(
            "query",
            TableName=self._tables.stage,
            ConsistentRead=True,  # otherwise the message that opened this window may be missing
            KeyConditionExpression=key_condition,
            **conditions.bind_values({":id": conversation_id}, key_condition),
        )
        return [items.staged_from_row(row) for row in pages]

    def drop(self, conversation_id: str, sids: Collection[str]) -> None:
        """Delete staged rows. Missing rows are ignored."""
        keys = [build_stage_key(conversation_id, sid) for sid in dict.fromkeys(sids)]
        deletes = [{"DeleteRequest": {"Key": key}} for key in keys]
        self._client.write_many(self._tables.stage, deletes)

    def build_deletes(self, conversation_id: str, sids: Iterable[str]) -> list[dict[str, Any]]:
        """Return the writes that delete staged rows, for a transaction."""
        keys = (build_stage_key(conversation_id, sid) for sid in sids)
        return [{"Delete": {"TableName": self._tables.stage, "Key": key}} for key in keys]

    def read_waiting(self) -> Iterator[WaitingConversation]:
        """Yield the conversations that have staged rows."""
        names = "#conversation_id, #primary_channel, #staged_at, #received_at"
        pages = self._client.read_pages(
            "scan",
            TableName=self._tables.stage,
            ProjectionExpression=names,
            **conditions.bind_values({}, names),
        )
        times_by_conversation: dict[str, dict[str, list[float]]] = {}
        for row in pages:
            channel = row.get("primary_channel")
            by_channel = times_by_conversation.setdefault(row["conversation_id"], {})
            since = items.parse_time_or_zero(row.get("staged_at")) or items.parse_time_or_zero(
                row.get("received_at")
            )
            by_channel.setdefault(channel if isinstance(channel, str) else "", []).append(since)
        for conversation_id, by_channel in times_by_conversation.items():
            yield from _waiting_from_channels(conversation_id, by_channel)

    # -- windows

    def open_window(self, window: Window, now: float, untriggered_before: float) -> bool:
        """Open the window unless another one is open. Return False if another one is.

        Repeating the call after a lost response opens the same window again.
        """
        values = {":now": now, ":before": untriggered_before, ":sid": window.owner_sid}
        result = self._client.write(
            "put_item",
            TableName=self._tables.windows,
            Item=sanitize.encode_row(items.row_from_window(window), "the window"),
            ConditionExpression=conditions.CAN_OPEN_WINDOW,
            **conditions.bind_values(values, conditions.CAN_OPEN_WINDOW),
        )
        return not isinstance(result, ConditionFailed)

    def mark_triggered(self, window: Window) -> None:
        """Note that the window's trigger is in the queue, if this window is still open."""
        update = "SET #triggered = :true"
        self._client.write(
            "update_item",
            TableName=self._tables.windows,
            Key=_build_window_key(window.conversation_id),
            UpdateExpression=update,
            ConditionExpression=conditions.SAME_TRIGGER,
            **conditions.bind_values(
                {":trigger": window.trigger_id}, update, conditions.SAME_TRIGGER
            ),
        )

    def read_window(self, conversation_id: str) -> Window | None:
        """Return the window, expired or not, or None if there is none."""
        response = self._client.call(
            "get_item",
            TableName=self._tables.windows,
            Key=_build_window_key(conversation_id),
            ConsistentRead=True,
        )
        row = decode(response.get("Item"))
        return items.window_from_row(row) if row else None

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Delete the window if it belongs to this trigger."""
        self._client.write(
            "delete_item",
            TableName=self._tables.windows,
            Key=_build_window_key(conversation_id),
            ConditionExpression=conditions.CAN_CLOSE_WINDOW,
            **conditions.bind_values({":trigger": trigger_id}, conditions.CAN_CLOSE_WINDOW),
        )


def _build_window_key(conversation_id: str) -> Attributes:
    return {"conversation_id": {"S": conversation_id}}


def _waiting_from_channels(
    conversation_id: str, by_channel: dict[str, list[float]]
) -> Iterator[WaitingConversation]:
    """Yield one entry per channel; rows without a channel join the first, as they are staged
    together.
    """
    nameless = by_channel.pop("", [])
    for channel, times in by_channel.items() or [("", [])]:
        all_times, nameless = [*times, *nameless], []
        key = ConversationKey(channel, conversation_id)
        yield WaitingConversation(key, len(all_times), min(all_times))


def put_if_new(
    client: DynamoDBClient, table: str, row: dict[str, Any], condition: str, subject: str
) -> bool:
    """Put the row if there is none. Return False if another writer's row is there.

    botocore repeats a call whose response was lost, and the first call then makes DynamoDB
    refuse the second. The `write_id` distinguishes this case from a row of another writer.
    """
    write_id = uuid4().hex
    result = client.write(
        "put_item",
        TableName=table,
        Item=sanitize.encode_row({**row, "write_id": write_id}, subject),
        ConditionExpression=condition,
        **conditions.bind_values({}, condition),
    )
    return not isinstance(result, ConditionFailed) or result.row.get("write_id") == write_id
