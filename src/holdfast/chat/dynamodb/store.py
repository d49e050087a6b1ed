"""DynamoDBConversations: the conversation store on Amazon DynamoDB.

A batch without faults costs twelve calls: two for the lock, staged, close_window, processed,
three notes, two for the end of the turn, the removal of its staged items, staged. The end is
one transaction:

    conversations          the last turn, counts, thread, status;     if it is as it was read
                           outbox and lock removed
    conversation-messages  the customer's batch and the reply,        if new
                           numbered; one item for each sid

The lock is in the conversation's item, and its renewals are in a small item beside it, because
a write costs as many units as its item has kilobytes:

    acquire, free lock      conversation: owner, fence, end of the lease
    renew                   renewal: fence, end of the lease             1 unit
    acquire, expired lock   both, in one transaction, so that no renewal of the former holder
                            can be accepted after it has lost the lock
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from holdfast.chat import store_rules as rules
from holdfast.chat.dynamodb import items
from holdfast.chat.dynamodb.tables import (
    ConversationTables,
    format_tables_command,
    tables_from_prefix,
)
from holdfast.chat.errors import PermanentError
from holdfast.chat.model import (
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockGrant,
    ParkedBatch,
    Staged,
    Status,
)
from holdfast.chat.outbox import Outbox, to_plain_data
from holdfast.chat.row_store import RowConversationStore, StoredConversation
from holdfast.chat.rows import message_from_row, row_from_history, row_from_key, row_from_parked
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.dynamodb.client import DynamoDBClient
from holdfast.store.dynamodb.rows import DynamoDBDatabase, ItemTable, split_entries
from holdfast.store.rows import Row, Rows

_MAX_BODY_CHARS = 75_000  # at most four bytes each, which leaves room for the details
# A reply that has more bytes is only noted if the conversation's item can hold it.
_MAX_UNCHECKED_BYTES = 8 * 1024
# The rest is for what `finish` adds.
_MAX_BYTES_WITH_OUTBOX = 380 * 1024
_MAX_MESSAGES_PER_SLICE = 40  # each needs two writes of a transaction
_MAX_SLICE_BYTES = 250 * 1024
_MAX_STAGED_BYTES = 390 * 1024
_MAX_TEXT_CHARS = 10_000  # of each text in a message that is too large
_KEEP_RENEWALS_SECONDS = 86_400.0  # after the end of the lock


def define_rows(tables: ConversationTables) -> dict[str, ItemTable]:
    """Return how the rows of conversations are stored in these tables."""
    history = ("conversation", "entry")
    return {
        "conversations": ItemTable(
            tables.conversations,
            ("primary_channel", "conversation_id"),
            items.item_from_conversation,
            items.conversation_from_item,
            version="write_id",
            guards=("conversation_status", "lock_fence", "lock_expires_at", "updated_at"),
            subject="the conversation",
        ),
        "messages": ItemTable(
            tables.messages,
            history,
            items.item_from_history,
            items.history_from_item,
            subject="a history message",
        ),
        "processed": ItemTable(
            tables.messages, history, items.item_from_mark, lambda item: item
        ),
        "renewals": ItemTable(
            tables.messages,
            history,
            items.item_from_renewal,
            lambda item: item,
            version="write_id",
        ),
        "stage": ItemTable(
            tables.stage,
            ("conversation_id", "message_sid"),
            items.item_from_staged,
            items.staged_from_item,
            version="write_id",
            subject="the message",
        ),
        "windows": ItemTable(
            tables.windows,
            ("conversation_id",),
            items.item_from_window,
            items.window_from_item,
            guards=("trigger_id", "triggered", "open_until", "expires_at"),
            # A window of the seed's own staging names no trigger. Closing it too early splits a
            # batch, but leaving it open would strand the next message.
            lenient=("trigger_id",),
            subject="the window",
        ),
        "parked": ItemTable(
            tables.parked,
            ("conversation_id", "parked_id"),
            items.item_from_parked,
            items.parked_from_item,
            version="write_id",
            subject="the parked batch",
        ),
    }


class DynamoDBConversations(RowConversationStore):
    """Conversations in five DynamoDB tables, which `create_tables` creates.

    Methods that store a value raise PermanentError if DynamoDB can never hold it.
    """

    _cleans_up_later = True  # a write within a transaction costs twice as many units

    def __init__(
        self, prefix: str = "", *, client: Any = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        dynamodb = DynamoDBClient(client, clock, tables_command=format_tables_command(prefix))
        tables = define_rows(tables_from_prefix(prefix))
        super().__init__(DynamoDBDatabase(dynamodb, tables, PermanentError), clock)

    # -- the lock

    def _find(self, rows: Rows, key: ConversationKey) -> StoredConversation | None:
        stored = self._find_row(rows, key)
        if stored is None or stored.conversation.status != Status.PROCESSING:
            return stored
        lock = stored.owner, stored.conversation.lock_fence
        for row in rows.select("renewals", {"conversation_no": stored.number}):
            if (row["lock_owner"], row["lock_fence"]) == lock:
                until = float(row["lock_expires_at"])
                renewed = replace(stored.conversation, lock_expires_at=until)
                return replace(stored, conversation=renewed)
        return stored

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        """Extend the lock. Return False if this grant lost it or it expired."""

        def extend(rows: Rows) -> bool:
            stored = self._find(rows, grant.key)
            if (
                stored is None
                or not rules.has_lock(grant, stored.conversation, stored.owner)
                or not stored.conversation.is_locked(now)
            ):
                return False
            self._end_renewals(rows, stored, grant, expires_at)
            return True

        return self._database.write(extend)

    def _end_renewals(
        self, rows: Rows, stored: StoredConversation, grant: LockGrant, expires_at: float
    ) -> None:
        row = {
            "conversation_no": stored.number,
            "lock_owner": grant.owner,
            "lock_fence": grant.fence,
            "lock_expires_at": expires_at,
            "expires_at": int(expires_at + _KEEP_RENEWALS_SECONDS),
        }
        rows.replace("renewals", [row])

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Write down how far the reply has come. Raises LockLost, and PermanentError if the
        reply is too long: it is noted before it is sent, so it is not sent.
        """
        size = _measure(to_plain_data(outbox))
        if size > _MAX_UNCHECKED_BYTES:
            key = row_from_key(grant.key)
            found = self._database.read(lambda rows: rows.select("conversations", key))
            size += sum(_measure({**row, "outbox": None}) for row in found)
            if size > _MAX_BYTES_WITH_OUTBOX:
                raise PermanentError(
                    f"the reply is too long to store: the row would have {size} bytes, "
                    f"the limit is {_MAX_BYTES_WITH_OUTBOX}"
                )
        super().note(grant, outbox, thread_id)

    # -- the history

    def _rows_from_history(self, number: Any, message: HistoryMessage) -> list[dict[str, Any]]:
        body = message.body
        starts = range(0, len(body) or 1, _MAX_BODY_CHARS)
        row = row_from_history(number, message)
        return [
            {**row, "body": body[start : start + _MAX_BODY_CHARS], "part": part}
            for part, start in enumerate(starts)
        ]

    def _read_messages(
        self, rows: Rows, number: Any, before: int, limit: int
    ) -> list[HistoryMessage]:
        where = {"conversation_no": number, "seq <": before}
        for rows_to_read in (limit << doubled for doubled in count()):
            page = rows.select("messages", where, descending=True, limit=rows_to_read)
            messages = list(_join_parts(page))
            if len(messages) >= limit or len(page) < rows_to_read:
                return messages[:limit]
        raise AssertionError("unreachable")

    # -- parking

    def _split_parked(self, staged: Sequence[Staged]) -> Iterator[Sequence[Staged]]:
        fitting = map(_shorten_if_too_large, staged)
        return split_entries(
            fitting, _measure_staged, _MAX_MESSAGES_PER_SLICE, _MAX_SLICE_BYTES
        )

    def _rows_from_parked(self, part: ParkedBatch, number: int) -> list[dict[str, Any]]:
        """Return a row with the messages of this slice, and before the first one the head."""
        row = row_from_parked(part)
        of = part.parked_id
        messages = {
            **row_from_key(part.key),
            "parked_id": f"{of}#{number:04}",  # sorts by position
            "of": of,
            "staged": row["staged"],
        }
        return [messages] if number else [row | {"staged": []}, messages]


def _join_parts(rows: Sequence[Row]) -> Iterator[HistoryMessage]:
    """Yield the messages of these rows.

    The rows are in descending order, so the rest of a message precedes its beginning.
    """
    rest = ""
    for row in rows:
        if row["part"]:
            rest = row["body"] + rest
            continue
        message = message_from_row(row)
        yield replace(message, body=message.body + rest) if rest else message
        rest = ""


def _measure(value: Any) -> int:
    """Return the approximate bytes of a value in an item, rather too many than too few."""
    return len(json.dumps(value, ensure_ascii=False, default=str).encode(errors="replace"))


def _measure_staged(staged: Staged) -> int:
    kept = [staged.body, *staged.media] if isinstance(staged, Fragment) else staged.row
    return _measure(kept) + 500  # the other fields


def _shorten_if_too_large(staged: Staged) -> Staged:
    """Return the message with long texts cut if no item can hold it.

    Other software may fill an item completely. An operator can find the rest by its beginning,
    while without parking the conversation would be blocked forever.
    """
    if _measure_staged(staged) <= _MAX_STAGED_BYTES:
        return staged
    if isinstance(staged, Fragment):
        return replace(staged, body=staged.body[:_MAX_TEXT_CHARS])
    return replace(staged, row=_shorten(staged.row))


def _shorten(value: Any) -> Any:
    match value:
        case str():
            return value[:_MAX_TEXT_CHARS]
        case dict():
            return {name: _shorten(element) for name, element in value.items()}
        case list() | tuple():
            return [_shorten(element) for element in value]
    return value
