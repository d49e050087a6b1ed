"""Staged messages and windows: the tables `conversations-stage` and
`conversations-trigger-lock`.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any
from uuid import uuid4

from holdfast.adapters.aws.dynamodb.chat import conditions, items, sanitize
from holdfast.adapters.aws.dynamodb.chat.conditions import CALLS
from holdfast.adapters.aws.dynamodb.chat.keys import build_stage_key
from holdfast.adapters.aws.dynamodb.chat.tables import format_tables_command, tables_from_prefix
from holdfast.adapters.aws.dynamodb.client import ConditionFailed, DynamoDBClient
from holdfast.adapters.aws.dynamodb.values import Attributes, decode
from holdfast.conversations.model import (
    ConversationKey,
    Fragment,
    Staged,
    WaitingConversation,
    Window,
)
from holdfast.conversations.ports import ConversationStore
from holdfast.core.clock import SYSTEM_CLOCK, Clock

Write = dict[str, Any]  # one entry of TransactItems


class StagingStore(ConversationStore):
    """The client and the tables of a store, and the part of the store that stages messages."""

    def __init__(
        self, prefix: str = "", *, client: Any = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._tables = tables_from_prefix(prefix)
        self._clock = clock
        self._client = DynamoDBClient(
            client, clock, tables_command=format_tables_command(prefix)
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- calls that all parts of the store make

    def _read_row(self, table: str, key: Attributes) -> dict[str, Any]:
        """Return the current row, or an empty one if there is none."""
        response = self._client.call("get_item", TableName=table, Key=key, ConsistentRead=True)
        return decode(response.get("Item"))

    def _put_if_new(
        self, table: str, row: dict[str, Any], condition: str, subject: str
    ) -> bool:
        """Put the row if there is none. Return False if another writer's row is there.

        botocore repeats a call whose response was lost, and the first call then makes DynamoDB
        refuse the second. The `write_id` distinguishes this case from a row of another writer.
        """
        write_id = uuid4().hex
        attributes = sanitize.encode_row({**row, "write_id": write_id}, subject)
        result = self._client.write("put_item", **CALLS.put(table, attributes, condition))
        is_refused = isinstance(result, ConditionFailed)
        return not is_refused or result.row.get("write_id") == write_id

    # -- staged messages

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Stage a fragment. Return False if it is staged already."""
        row = items.row_from_fragment(fragment) | {
            "expires_at": sanitize.to_expiry_seconds(expires_at)
        }
        return self._put_if_new(self._tables.stage, row, conditions.NEW_FRAGMENT, "the message")

    def staged(self, conversation_id: str) -> list[Staged]:
        """Return every staged row of the conversation."""
        query = CALLS.query(
            self._tables.stage,
            "#conversation_id = :id",
            {":id": conversation_id},
            ConsistentRead=True,  # otherwise the message that opened this window may be missing
        )
        return [items.staged_from_row(row) for row in self._client.read_pages("query", **query)]

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        """Delete the staged rows of these sids. Missing rows are ignored."""
        keys = [build_stage_key(conversation_id, sid) for sid in dict.fromkeys(sids)]
        deletes = [{"DeleteRequest": {"Key": key}} for key in keys]
        self._client.write_many(self._tables.stage, deletes)

    def _build_stage_deletes(self, conversation_id: str, sids: Iterable[str]) -> list[Write]:
        """Return the writes that delete staged rows, for a transaction."""
        keys = (build_stage_key(conversation_id, sid) for sid in sids)
        return [{"Delete": CALLS.delete(self._tables.stage, key)} for key in keys]

    def waiting(self) -> Iterator[WaitingConversation]:
        """Yield the conversations that have staged rows, from a table scan."""
        names = "#conversation_id, #primary_channel, #staged_at, #received_at"
        pages = self._client.read_pages(
            "scan",
            TableName=self._tables.stage,
            ProjectionExpression=names,
            **CALLS.bind({}, names),
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

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        """Open the window unless another one is open. Return False if another one is.

        Repeating the call after a lost response opens the same window again.
        """
        row = sanitize.encode_row(items.row_from_window(window), "the window")
        values = {":now": now, ":before": untriggered_before, ":sid": window.owner_sid}
        put = CALLS.put(self._tables.windows, row, conditions.CAN_OPEN_WINDOW, values)
        return not isinstance(self._client.write("put_item", **put), ConditionFailed)

    def mark_triggered(self, window: Window) -> None:
        """Note that the window's trigger is in the queue, if this window is still open."""
        update = CALLS.update(
            self._tables.windows,
            _build_window_key(window.conversation_id),
            "SET #triggered = :true",
            conditions.SAME_TRIGGER,
            {":trigger": window.trigger_id},
        )
        self._client.write("update_item", **update)

    def window(self, conversation_id: str) -> Window | None:
        """Return the conversation's window, expired or not, or None if there is none."""
        row = self._read_row(self._tables.windows, _build_window_key(conversation_id))
        return items.window_from_row(row) if row else None

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Delete the window if it belongs to this trigger."""
        delete = CALLS.delete(
            self._tables.windows,
            _build_window_key(conversation_id),
            conditions.CAN_CLOSE_WINDOW,
            {":trigger": trigger_id},
        )
        self._client.write("delete_item", **delete)


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
