"""Staged messages, windows, the history and processed sids.

`conversations-stage` and `conversations-trigger-lock` have one row per message and window.
`conversation-messages` has these rows:

    message#000000000007      one message
    message#000000000007#01   the rest of a long message, because a row holds at most 400 KB
    sid#SM…                   a processed (answered or parked) message; expires by `expires_at`
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any
from uuid import uuid4

from holdfast.chat.dynamodb import conditions, items
from holdfast.chat.dynamodb.conditions import CALLS
from holdfast.chat.dynamodb.tables import format_tables_command, tables_from_prefix
from holdfast.chat.model import (
    ConversationKey,
    Fragment,
    HistoryMessage,
    Staged,
    WaitingConversation,
    Window,
)
from holdfast.chat.ports import ConversationStore
from holdfast.chat.rows import row_from_message
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.dynamodb.client import ConditionFailed, DynamoDBClient
from holdfast.store.dynamodb.values import Attributes, decode, encode

Write = dict[str, Any]  # one entry of TransactItems

_MAX_SEQ = 10**12 - 1
_MAX_BODY_CHARS = 75_000  # at most four bytes each, which leaves room for the details


class MessageStore(ConversationStore):
    """The client and the tables of a store, and the part of the store that has the messages."""

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

    def _read_conversation(self, key: ConversationKey) -> items.Row:
        """Return the row, or an empty one if there is none."""
        if not items.is_valid_key(key):
            return {}
        return self._read_row(self._tables.conversations, items.build_conversation_key(key))

    def _put_if_new(
        self, table: str, row: dict[str, Any], condition: str, subject: str
    ) -> bool:
        """Put the row if there is none. Return False if another writer's row is there.

        botocore repeats a call whose response was lost, and the first call then makes DynamoDB
        refuse the second. The `write_id` distinguishes this case from a row of another writer.
        """
        write_id = uuid4().hex
        attributes = items.encode_row({**row, "write_id": write_id}, subject)
        result = self._client.write("put_item", **CALLS.put(table, attributes, condition))
        is_refused = isinstance(result, ConditionFailed)
        return not is_refused or result.row.get("write_id") == write_id

    # -- staged messages

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Stage a fragment. Return False if it is staged already."""
        row = items.row_from_fragment(fragment) | {
            "expires_at": items.to_expiry_seconds(expires_at)
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
        keys = [items.build_stage_key(conversation_id, sid) for sid in dict.fromkeys(sids)]
        deletes = [{"DeleteRequest": {"Key": key}} for key in keys]
        self._client.write_many(self._tables.stage, deletes)

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
        row = items.encode_row(items.row_from_window(window), "the window")
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

    # -- the history and processed sids

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
                ":conversation": items.build_history_hash(key),
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
        keys = [items.build_sid_key(key, sid) for sid in dict.fromkeys(sids)]
        rows = self._client.read_rows(self._tables.messages, keys)
        return {row["message_sid"] for row in rows}

    # -- writes of a transaction

    def _build_message_puts(self, key: ConversationKey, message: HistoryMessage) -> list[Write]:
        """Return the writes that add a message to the history, for a transaction."""
        return [
            {"Put": CALLS.put(self._tables.messages, row, conditions.NEW_MESSAGE)}
            for row in _rows_from_message(key, message)
        ]

    def _build_processed_writes(
        self, key: ConversationKey, sids: Iterable[str], until: float, *, new: bool = False
    ) -> list[Write]:
        """Return the writes that mark sids as processed and delete their staged rows.

        With `new`, the whole transaction is refused if one of the sids is marked already.
        """
        condition = conditions.NEW_MESSAGE if new else ""
        expires_at = items.to_expiry_seconds(until)
        puts, deletes = [], []
        for sid in dict.fromkeys(sids):
            mark = encode({"message_sid": sid, "expires_at": expires_at})
            row = items.build_sid_key(key, sid) | mark
            puts.append({"Put": CALLS.put(self._tables.messages, row, condition)})
            stage_key = items.build_stage_key(key.conversation_id, sid)
            deletes.append({"Delete": CALLS.delete(self._tables.stage, stage_key)})
        return [*puts, *deletes]

    def _build_processed_deletes(
        self, key: ConversationKey, sids: Iterable[str]
    ) -> list[Write]:
        """Return the writes that make sids unprocessed again, for a transaction."""
        keys = (items.build_sid_key(key, sid) for sid in sids)
        return [{"Delete": CALLS.delete(self._tables.messages, sid_key)} for sid_key in keys]

    # -- messages that other software put into the conversation's row

    def _adopt_messages(self, key: ConversationKey, messages: Iterable[HistoryMessage]) -> None:
        """Copy messages to the history, because the row keeps only the recent ones.

        Repeating it is safe, because the numbers are fixed while the lock is held.
        """
        rows = [row for message in messages for row in _rows_from_message(key, message)]
        puts = [{"PutRequest": {"Item": row}} for row in rows]
        self._client.write_many(self._tables.messages, puts)


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


def _format_entry(seq: int) -> str:
    return f"message#{max(0, seq):012}"


def _rows_from_message(key: ConversationKey, message: HistoryMessage) -> list[Attributes]:
    """Return the row of a message, and further rows if the body does not fit into one."""
    first, *rest = [
        message.body[start : start + _MAX_BODY_CHARS]
        for start in range(0, len(message.body) or 1, _MAX_BODY_CHARS)
    ]
    conversation, entry = items.build_history_hash(key), _format_entry(message.seq)
    head = row_from_message(replace(message, body=first))
    rows = [{"conversation": conversation, "entry": entry, **head}]
    rows += [
        {"conversation": conversation, "entry": f"{entry}#{number:02}", "body": body}
        for number, body in enumerate(rest, 1)
    ]
    return [items.encode_row(row, "a history message") for row in rows]


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
