"""ParkedRows and taking out, each slice in one transaction.

    conversations          status parked; no outbox, no lock   if MINE, in the last slice
    conversations-parked   the batch                           if it is not there
    conversation-messages  a row for each sid: processed
    conversations-stage    the batch is gone

Whoever dies between two slices leaves messages that are parked and others that are staged,
none that is neither, and the lock runs out.
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
        if grant is None:
            self._park_unprocessed(parked, remember_until)
        else:
            self._park_slices(_Lock(self._rows, grant, parked), parked, remember_until)

    def _park_unprocessed(self, parked: ParkedBatch, until: float) -> None:
        """Nobody holds the lock for this: others may park or answer the same messages."""
        key = parked.key
        for _ in range(MAX_TRIES):
            known = self._history.read_processed(key, parked.sids)
            self._staging.drop(key.conversation_id, known)
            parked = rules.drop_processed(parked, known)
            if not parked.staged or self._park_slices(None, parked, until):
                return
        raise build_row_changing_error()

    def _park_slices(self, lock: "_Lock | None", parked: ParkedBatch, until: float) -> bool:
        """False, only without a lock: some of them were processed meanwhile."""
        parts = parked_items.split_into_parts(parked.staged)
        slices = list(parked_items.split_into_slices([len(part) for part in parts]))
        for number, places in enumerate(slices):
            puts = [parked_items.row_from_part(parked, place, parts[place]) for place in places]
            if number == 0:
                puts.insert(0, parked_items.row_from_batch(parked))
            sids = [one["message_sid"] for place in places for one in parts[place]]
            last = number == len(slices) - 1
            writes = [self._build_put(row) for row in puts]
            others = self._build_processed_writes(parked, sids, until, new=lock is None)
            if lock is not None:
                self._park_with_lock(lock, last, writes, others)
            elif not self._park_without_lock(writes, others):
                return False
        return True

    def _park_without_lock(self, puts: list[Write], others: list[Write]) -> bool:
        """Write one slice without a lock. False: some of it was processed meanwhile."""
        answer = self._client.transact([*puts, *others])
        if isinstance(answer, TransactionCancelled) and not any(answer.reasons[len(puts) :]):
            # ParkedBatch already, and its messages came again: only their rows must go.
            answer = self._client.transact(others)
        return isinstance(answer, WriteDone)

    def _build_processed_writes(
        self, parked: ParkedBatch, sids: list[str], until: float, *, new: bool
    ) -> list[Write]:
        once = list(dict.fromkeys(sids))
        return [
            *self._history.build_processed_puts(parked.key, once, until, new=new),
            *self._staging.build_deletes(parked.key.conversation_id, once),
        ]

    def _park_with_lock(
        self, lock: "_Lock", last: bool, puts: list[Write], others: list[Write]
    ) -> None:
        for _ in range(MAX_TRIES):
            answer = self._client.transact([lock.build_write(last), *puts, *others])
            if isinstance(answer, WriteDone):
                return
            if (refused := answer.reasons[0]) is not None:
                if lock.is_released_by_this(refused):
                    return
            else:
                puts = []  # it is parked already; the rest is due all the same
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
        return parked_items.batches_from_rows(
            self._client.read_pages("scan", TableName=self._tables.parked)
        )

    def _find(self, parked_id: str) -> tuple[ParkedBatch, dict[str, int]]:
        """With its parts, by name, and how many messages each has. Its conversation is not
        known: the table is looked through."""
        only = "#parked_id = :id OR #of = :id"
        pages = self._client.read_pages(
            "scan",
            TableName=self._tables.parked,
            ConsistentRead=True,
            FilterExpression=only,
            **conditions.bind_values({":id": parked_id}, only),
        )
        rows = list(pages)
        for parked in parked_items.batches_from_rows(rows):
            own = [row for row in rows if row["conversation_id"] == parked.key.conversation_id]
            sizes = {row["parked_id"]: len(row["staged"]) for row in own if "of" in row}
            return parked, dict(sorted(sizes.items()))
        raise _build_not_found_error()

    # -- taking out

    def unpark(self, parked_id: str, back: bool, now: float, expires_at: float) -> ParkedBatch:
        parked, parts = self._find(parked_id)
        names, sizes = list(parts), list(parts.values())
        slices = list(parked_items.split_into_slices(sizes))
        again = rules.restage(parked, now) if back else []
        at = 0
        for number, places in enumerate(slices):
            many = sum(sizes[place] for place in places)
            rows, at = again[at : at + many], at + many
            gone = [names[place] for place in places]
            if number == len(slices) - 1:
                gone.insert(0, parked_id)  # last: until then it is found, and can be repeated
            self._take_out(parked, gone, rows, now, expires_at)
        return parked

    def _take_out(
        self,
        parked: ParkedBatch,
        gone: list[str],
        back: list[Staged],
        now: float,
        expires_at: float,
    ) -> None:
        deletes = [self._build_delete(parked.key, name) for name in gone]
        forgotten = self._history.build_processed_deletes(
            parked.key, [one.message_sid for one in back]
        )
        puts = [self._build_restage_put(parked, one, now, expires_at) for one in back]
        for _ in range(MAX_TRIES):
            answer = self._client.transact([*deletes, *puts, *forgotten])
            if isinstance(answer, WriteDone):
                return
            if any(answer.reasons[: len(deletes)]):
                raise _build_not_found_error()
            puts = list(_skip_refused(puts, answer, len(deletes)))  # staged again meanwhile
        raise build_row_changing_error()

    def build_unpark_writes(self, key: ConversationKey, parked_id: str) -> tuple[Write, ...]:
        """Writes of a transaction, which is refused when it is not parked there."""
        its_own = "#conversation_id = :conversation AND begins_with(#parked_id, :id)"
        rows = self._client.read_pages(
            "query",
            TableName=self._tables.parked,
            ConsistentRead=True,
            KeyConditionExpression=its_own,
            **conditions.bind_values(
                {":conversation": key.conversation_id, ":id": parked_id}, its_own
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
        self, parked: ParkedBatch, one: Staged, now: float, expires_at: float
    ) -> Write:
        row = parked_items.row_for_restaging(one, parked.key, now)
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
    """The conversation's row in the transactions of one parking."""

    def __init__(self, rows: ConversationRows, grant: LockGrant, parked: ParkedBatch) -> None:
        self._rows, self._grant, self._at = rows, grant, parked.parked_at
        self._mark = get_thread_mark(parked.outbox)
        self._row = rows.read_held_row(grant)
        self._write_id = uuid4().hex

    def build_write(self, last: bool) -> Write:
        """Given back with the last slice; until then it must be ours."""
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
        old = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        if last:
            return {"Update": update | old}
        key = {name: update[name] for name in ("TableName", "Key")}
        condition = {"ConditionExpression": conditions.LOCK_HELD}
        return {
            "ConditionCheck": key
            | condition
            | conditions.bind_values(
                conditions.values_from_grant(self._grant), conditions.LOCK_HELD
            )
            | old
        }

    def is_released_by_this(self, refused: ConditionFailed) -> bool:
        """True: it was the answer that was lost. False: try again. Raises LockLost."""
        self._row = refused.row
        if self._row.get("write_id") == self._write_id:
            return True
        if not items.is_held_by(self._row, self._grant):
            raise build_lock_lost_error(self._grant)
        return False


def _skip_refused(
    puts: list[Write], answer: TransactionCancelled, first: int
) -> Iterator[Write]:
    reasons = answer.reasons[first : first + len(puts)]
    return (put for put, reason in zip(puts, reasons, strict=True) if reason is None)


def _build_not_found_error() -> ParkedNotFound:
    return ParkedNotFound("nothing is parked under that id")
