"""Park batches and take them out again, each slice in one transaction.

    conversations          status parked, outbox and lock removed   if LOCK_HELD; last slice
    conversations-parked   the batch is added                       if it is not there
    conversation-messages  each sid is marked as processed
    conversations-stage    the batch is removed

If a process crashes between two slices, some messages are parked and the others are still
staged. No message is lost, and the lock expires.
"""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from holdfast.adapters.aws.dynamodb.chat import conditions, items, parked_items, sanitize
from holdfast.adapters.aws.dynamodb.chat.history import HistoryRows
from holdfast.adapters.aws.dynamodb.chat.rows import (
    LOCK_ATTRIBUTES,
    MAX_TRIES,
    ConversationRows,
    bind_release,
    build_lock_lost_error,
    build_row_changing_error,
)
from holdfast.adapters.aws.dynamodb.chat.staging import StagingRows
from holdfast.adapters.aws.dynamodb.chat.tables import EXPIRES_BY, ConversationTables
from holdfast.adapters.aws.dynamodb.client import (
    ConditionFailed,
    DynamoDBClient,
    TransactionCancelled,
    WriteDone,
)
from holdfast.adapters.aws.dynamodb.values import Attributes
from holdfast.conversations import store_rules as rules
from holdfast.conversations.errors import ParkedNotFound
from holdfast.conversations.model import ConversationKey, LockGrant, ParkedBatch, Staged, Status
from holdfast.conversations.outbox import get_thread_mark

_SET_PARKED = "SET #conversation_status = :status, #updated_at = :at, #write_id = :write"
_SET_MARK = ", #thread_mark = :mark"
_REMOVE_LOCK = f" REMOVE #outbox, {LOCK_ATTRIBUTES}"

Write = dict[str, Any]


class ParkedRows:
    """The rows of `conversations-parked`, and the transactions that move batches in and out."""

    def __init__(
        self,
        client: DynamoDBClient,
        tables: ConversationTables,
        rows: ConversationRows,
        history: HistoryRows,
        stage: StagingRows,
    ) -> None:
        self._client, self._tables = client, tables
        self._rows, self._history, self._staging = rows, history, stage

    # -- parking

    def park(self, grant: LockGrant | None, parked: ParkedBatch, remember_until: float) -> None:
        """Park the batch. Raises LockLost if the grant no longer holds the lock."""
        if grant is None:
            self._park_unprocessed(parked, remember_until)
        else:
            self._park_slices(_Lock(self._rows, grant, parked), parked, remember_until)

    def _park_unprocessed(self, parked: ParkedBatch, until: float) -> None:
        """Park without a lock. Other workers may park or answer the same messages meanwhile."""
        key = parked.key
        for _ in range(MAX_TRIES):
            known = self._history.read_processed(key, parked.sids)
            self._staging.drop(key.conversation_id, known)
            parked = rules.drop_processed(parked, known)
            if not parked.staged or self._park_slices(None, parked, until):
                return
        raise build_row_changing_error()

    def _park_slices(self, lock: "_Lock | None", parked: ParkedBatch, until: float) -> bool:
        """Park slice by slice. Return False if messages were processed meanwhile.

        It returns False only without a lock.
        """
        parts = parked_items.split_into_parts(parked.staged)
        slices = list(parked_items.split_into_slices([len(part) for part in parts]))
        for number, positions in enumerate(slices):
            puts = [
                parked_items.row_from_part(parked, position, parts[position])
                for position in positions
            ]
            if number == 0:
                puts.insert(0, parked_items.row_from_batch(parked))
            sids = [entry["message_sid"] for position in positions for entry in parts[position]]
            is_last = number == len(slices) - 1
            writes = [self._build_put(row) for row in puts]
            processed_writes = self._build_processed_writes(
                parked, sids, until, new=lock is None
            )
            if lock is not None:
                self._park_with_lock(lock, is_last, writes, processed_writes)
            elif not self._park_without_lock(writes, processed_writes):
                return False
        return True

    def _park_without_lock(self, puts: list[Write], processed_writes: list[Write]) -> bool:
        """Write one slice. Return False if some of its messages were processed meanwhile."""
        result = self._client.transact([*puts, *processed_writes])
        if isinstance(result, TransactionCancelled) and not any(result.reasons[len(puts) :]):
            # The batch is parked already and its messages were staged again, so only the staged
            # rows must be removed.
            result = self._client.transact(processed_writes)
        return isinstance(result, WriteDone)

    def _build_processed_writes(
        self, parked: ParkedBatch, sids: list[str], until: float, *, new: bool
    ) -> list[Write]:
        unique_sids = list(dict.fromkeys(sids))
        return [
            *self._history.build_processed_puts(parked.key, unique_sids, until, new=new),
            *self._staging.build_deletes(parked.key.conversation_id, unique_sids),
        ]

    def _park_with_lock(
        self, lock: "_Lock", is_last: bool, puts: list[Write], processed_writes: list[Write]
    ) -> None:
        for _ in range(MAX_TRIES):
            result = self._client.transact(
                [lock.build_write(is_last), *puts, *processed_writes]
            )
            if isinstance(result, WriteDone):
                return
            if (failure := result.reasons[0]) is not None:
                if lock.is_released_by_this(failure):
                    return
            else:
                puts = []  # the batch is parked already, but the other writes are still needed
        raise build_row_changing_error()

    def _build_put(self, row: Attributes) -> Write:
        return {
            "Put": {
                "TableName": self._tables.parked,
                "Item": row,
                "ConditionExpression": conditions.NEW_PARKED,
                **conditions.bind_values({}, conditions.NEW_PARKED),
            }
        }

    # -- reading

    def read_all(self) -> list[ParkedBatch]:
        """Return all parked batches, the oldest first."""
        return parked_items.batches_from_rows(
            self._client.read_pages("scan", TableName=self._tables.parked)
        )

    def _find(self, parked_id: str) -> tuple[ParkedBatch, dict[str, int]]:
        """Return the batch, and the number of messages in each of its parts by name.

        The id does not contain the conversation, so the whole table is scanned. Raises
        ParkedNotFound.
        """
        filter_expression = "#parked_id = :id OR #of = :id"
        pages = self._client.read_pages(
            "scan",
            TableName=self._tables.parked,
            ConsistentRead=True,
            FilterExpression=filter_expression,
            **conditions.bind_values({":id": parked_id}, filter_expression),
        )
        rows = list(pages)
        for parked in parked_items.batches_from_rows(rows):
            own_rows = [
                row for row in rows if row["conversation_id"] == parked.key.conversation_id
            ]
            sizes = {row["parked_id"]: len(row["staged"]) for row in own_rows if "of" in row}
            return parked, dict(sorted(sizes.items()))
        raise _build_not_found_error()

    # -- taking out

    def unpark(
        self, parked_id: str, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Take the batch out and return it; with `back`, stage its messages again.

        Raises ParkedNotFound.
        """
        parked, parts = self._find(parked_id)
        names, sizes = list(parts), list(parts.values())
        slices = list(parked_items.split_into_slices(sizes))
        restaged = rules.restage(parked, now) if back_to_stage else []
        start = 0
        for number, positions in enumerate(slices):
            size = sum(sizes[position] for position in positions)
            rows, start = restaged[start : start + size], start + size
            names_to_delete = [names[position] for position in positions]
            if number == len(slices) - 1:
                # the head goes last, so that an interrupted call can be repeated
                names_to_delete.insert(0, parked_id)
            self._take_out(parked, names_to_delete, rows, now, expires_at)
        return parked

    def _take_out(
        self,
        parked: ParkedBatch,
        names: list[str],
        restaged: list[Staged],
        now: float,
        expires_at: float,
    ) -> None:
        deletes = [self._build_delete(parked.key, name) for name in names]
        forgotten = self._history.build_processed_deletes(
            parked.key, [staged.message_sid for staged in restaged]
        )
        puts = [self._build_restage_put(parked, staged, now, expires_at) for staged in restaged]
        for _ in range(MAX_TRIES):
            result = self._client.transact([*deletes, *puts, *forgotten])
            if isinstance(result, WriteDone):
                return
            if any(result.reasons[: len(deletes)]):
                raise _build_not_found_error()
            # skip messages that were staged again meanwhile
            puts = list(_skip_refused(puts, result, len(deletes)))
        raise build_row_changing_error()

    def build_unpark_writes(self, key: ConversationKey, parked_id: str) -> tuple[Write, ...]:
        """Return the writes that take a batch out, for a transaction.

        The transaction is refused if the batch is not parked there.
        """
        key_condition = "#conversation_id = :conversation AND begins_with(#parked_id, :id)"
        rows = self._client.read_pages(
            "query",
            TableName=self._tables.parked,
            ConsistentRead=True,
            KeyConditionExpression=key_condition,
            **conditions.bind_values(
                {":conversation": key.conversation_id, ":id": parked_id}, key_condition
            ),
        )
        parts = [row["parked_id"] for row in rows if row.get("of") == parked_id]
        return tuple(self._build_delete(key, name) for name in (parked_id, *parts))

    def _build_delete(self, key: ConversationKey, name: str) -> Write:
        return {
            "Delete": {
                "TableName": self._tables.parked,
                "Key": {
                    "conversation_id": {"S": key.conversation_id},
                    "parked_id": {"S": name},
                },
                "ConditionExpression": conditions.STILL_PARKED,
                **conditions.bind_values({}, conditions.STILL_PARKED),
            }
        }

    def _build_restage_put(
        self, parked: ParkedBatch, staged: Staged, now: float, expires_at: float
    ) -> Write:
        row = parked_items.row_for_restaging(staged, parked.key, now)
        row[EXPIRES_BY] = sanitize.to_expiry_seconds(expires_at)
        return {
            "Put": {
                "TableName": self._tables.stage,
                "Item": sanitize.encode_row(row, "the message"),
                "ConditionExpression": conditions.NEW_FRAGMENT,
                **conditions.bind_values({}, conditions.NEW_FRAGMENT),
            }
        }


class _Lock:
    """The conversation's row in the transactions that park one batch."""

    def __init__(self, rows: ConversationRows, grant: LockGrant, parked: ParkedBatch) -> None:
        self._rows, self._grant, self._at = rows, grant, parked.parked_at
        self._mark = get_thread_mark(parked.outbox)
        self._row = rows.read_held_row(grant)
        self._write_id = uuid4().hex

    def build_write(self, is_last: bool) -> Write:
        """Return the write that releases the lock with the last slice, or checks it before."""
        values = {
            ":at": self._at,
            ":write": self._write_id,
            ":mark": self._mark,
            **bind_release(self._grant, self._row, Status.PARKED),
        }
        expression = _SET_PARKED + (_SET_MARK if self._mark else "") + _REMOVE_LOCK
        update = self._rows.build_update(
            self._grant.key, expression, conditions.CAN_RELEASE_LOCK, values
        )
        return_old = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        if is_last:
            return {"Update": update | return_old}
        key = {name: update[name] for name in ("TableName", "Key")}
        condition = {"ConditionExpression": conditions.LOCK_HELD}
        return {
            "ConditionCheck": key
            | condition
            | conditions.bind_values(
                conditions.values_from_grant(self._grant), conditions.LOCK_HELD
            )
            | return_old
        }

    def is_released_by_this(self, failure: ConditionFailed) -> bool:
        """Return whether an earlier try released the lock and only its response was lost.

        False means that the caller may try again. Raises LockLost.
        """
        self._row = failure.row
        if self._row.get("write_id") == self._write_id:
            return True
        if not items.is_held_by(self._row, self._grant):
            raise build_lock_lost_error(self._grant)
        return False


def _skip_refused(
    puts: list[Write], result: TransactionCancelled, first: int
) -> Iterator[Write]:
    reasons = result.reasons[first : first + len(puts)]
    return (put for put, reason in zip(puts, reasons, strict=True) if reason is None)


def _build_not_found_error() -> ParkedNotFound:
    return ParkedNotFound("no batch is parked under that id")
