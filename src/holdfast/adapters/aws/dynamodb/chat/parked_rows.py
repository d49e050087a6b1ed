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

from holdfast.adapters.aws.dynamodb.chat import conditions as when
from holdfast.adapters.aws.dynamodb.chat import items, parked_items, sanitize
from holdfast.adapters.aws.dynamodb.chat.history import HistoryRows
from holdfast.adapters.aws.dynamodb.chat.rows import (
    ROUNDS,
    UNLOCK,
    ConversationRows,
    changing,
    ending,
    lock_lost,
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
from holdfast.conversations.outbox import mark_in

_FREE = "SET #conversation_status = :status, #updated_at = :at, #write_id = :write"
_MOVE_MARK = ", #thread_mark = :mark"
_FORGET = f" REMOVE #outbox, {UNLOCK}"

Write = dict[str, Any]


class ParkedRows:
    def __init__(
        self,
        calls: DynamoDBClient,
        tables: ConversationTables,
        rows: ConversationRows,
        history: HistoryRows,
        stage: StagingRows,
    ) -> None:
        self._calls, self._tables = calls, tables
        self._rows, self._history, self._stage = rows, history, stage

    # -- parking

    def park(self, grant: LockGrant | None, parked: ParkedBatch, remember_until: float) -> None:
        if grant is None:
            self._park_what_is_open(parked, remember_until)
        else:
            self._park(_Lock(self._rows, grant, parked), parked, remember_until)

    def _park_what_is_open(self, parked: ParkedBatch, until: float) -> None:
        """Nobody holds the lock for this: others may park or answer the same messages."""
        key = parked.key
        for _ in range(ROUNDS):
            known = self._history.processed(key, parked.sids)
            self._stage.drop(key.conversation_id, known)
            parked = rules.still_open(parked, known)
            if not parked.staged or self._park(None, parked, until):
                return
        raise changing()

    def _park(self, lock: "_Lock | None", parked: ParkedBatch, until: float) -> bool:
        """False, only without a lock: some of them were processed meanwhile."""
        parts = parked_items.parts_of(parked.staged)
        slices = list(parked_items.slices_of([len(part) for part in parts]))
        for number, places in enumerate(slices):
            puts = [parked_items.part_row(parked, place, parts[place]) for place in places]
            if number == 0:
                puts.insert(0, parked_items.head_row(parked))
            sids = [one["message_sid"] for place in places for one in parts[place]]
            last = number == len(slices) - 1
            writes = [self._put(row) for row in puts]
            others = self._done_with(parked, sids, until, new=lock is None)
            if lock is not None:
                self._move(lock, last, writes, others)
            elif not self._put_aside(writes, others):
                return False
        return True

    def _put_aside(self, puts: list[Write], others: list[Write]) -> bool:
        """Write one slice without a lock. False: some of it was processed meanwhile."""
        answer = self._calls.transact([*puts, *others])
        if isinstance(answer, TransactionCancelled) and not any(answer.reasons[len(puts) :]):
            # ParkedBatch already, and its messages came again: only their rows must go.
            answer = self._calls.transact(others)
        return isinstance(answer, WriteDone)

    def _done_with(
        self, parked: ParkedBatch, sids: list[str], until: float, *, new: bool
    ) -> list[Write]:
        once = list(dict.fromkeys(sids))
        return [
            *self._history.remembered(parked.key, once, until, new=new),
            *self._stage.unstaged(parked.key.conversation_id, once),
        ]

    def _move(self, lock: "_Lock", last: bool, puts: list[Write], others: list[Write]) -> None:
        for _ in range(ROUNDS):
            answer = self._calls.transact([lock.write(last), *puts, *others])
            if isinstance(answer, WriteDone):
                return
            if (refused := answer.reasons[0]) is not None:
                if lock.was_freed_by_this(refused):
                    return
            else:
                puts = []  # it is parked already; the rest is due all the same
        raise changing()

    def _put(self, row: Attributes) -> Write:
        return {
            "Put": {
                "TableName": self._tables.parked,
                "Item": row,
                "ConditionExpression": when.NEW_PARKED,
                **when.used({}, when.NEW_PARKED),
            }
        }

    # -- reading

    def all(self) -> list[ParkedBatch]:
        return parked_items.parked_of(self._calls.pages("scan", TableName=self._tables.parked))

    def _find(self, parked_id: str) -> tuple[ParkedBatch, dict[str, int]]:
        """With its parts, by name, and how many messages each has. Its conversation is not
        known: the table is looked through."""
        only = "#parked_id = :id OR #of = :id"
        pages = self._calls.pages(
            "scan",
            TableName=self._tables.parked,
            ConsistentRead=True,
            FilterExpression=only,
            **when.used({":id": parked_id}, only),
        )
        rows = list(pages)
        for parked in parked_items.parked_of(rows):
            own = [row for row in rows if row["conversation_id"] == parked.key.conversation_id]
            sizes = {row["parked_id"]: len(row["staged"]) for row in own if "of" in row}
            return parked, dict(sorted(sizes.items()))
        raise _not_found()

    # -- taking out

    def unpark(self, parked_id: str, back: bool, now: float, expires_at: float) -> ParkedBatch:
        parked, parts = self._find(parked_id)
        names, sizes = list(parts), list(parts.values())
        slices = list(parked_items.slices_of(sizes))
        again = rules.staged_again(parked, now) if back else []
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
        deletes = [self._delete(parked.key, name) for name in gone]
        forgotten = self._history.forgotten(parked.key, [one.message_sid for one in back])
        puts = [self._staged_again(parked, one, now, expires_at) for one in back]
        for _ in range(ROUNDS):
            answer = self._calls.transact([*deletes, *puts, *forgotten])
            if isinstance(answer, WriteDone):
                return
            if any(answer.reasons[: len(deletes)]):
                raise _not_found()
            puts = list(_unrefused(puts, answer, len(deletes)))  # staged again meanwhile
        raise changing()

    def taken_out(self, key: ConversationKey, parked_id: str) -> tuple[Write, ...]:
        """Writes of a transaction, which is refused when it is not parked there."""
        its_own = "#conversation_id = :conversation AND begins_with(#parked_id, :id)"
        rows = self._calls.pages(
            "query",
            TableName=self._tables.parked,
            ConsistentRead=True,
            KeyConditionExpression=its_own,
            **when.used({":conversation": key.conversation_id, ":id": parked_id}, its_own),
        )
        parts = [row["parked_id"] for row in rows if row.get("of") == parked_id]
        return tuple(self._delete(key, name) for name in (parked_id, *parts))

    def _delete(self, key: ConversationKey, name: str) -> Write:
        return {
            "Delete": {
                "TableName": self._tables.parked,
                "Key": {
                    "conversation_id": {"S": key.conversation_id},
                    "parked_id": {"S": name},
                },
                "ConditionExpression": when.STILL_PARKED,
                **when.used({}, when.STILL_PARKED),
            }
        }

    def _staged_again(
        self, parked: ParkedBatch, one: Staged, now: float, expires_at: float
    ) -> Write:
        row = parked_items.staged_again(one, parked.key, now)
        row[EXPIRES_BY] = sanitize.expiry(expires_at)
        return {
            "Put": {
                "TableName": self._tables.stage,
                "Item": sanitize.kept(row, "the message"),
                "ConditionExpression": when.NEW_FRAGMENT,
                **when.used({}, when.NEW_FRAGMENT),
            }
        }


class _Lock:
    """The conversation's row in the transactions of one parking."""

    def __init__(self, rows: ConversationRows, grant: LockGrant, parked: ParkedBatch) -> None:
        self._rows, self._grant, self._at = rows, grant, parked.parked_at
        self._mark = mark_in(parked.outbox)
        self._row = rows.held(grant)
        self._write_id = uuid4().hex

    def write(self, last: bool) -> Write:
        """Given back with the last slice; until then it must be ours."""
        values = {
            ":at": self._at,
            ":write": self._write_id,
            ":mark": self._mark,
            **ending(self._grant, self._row, Status.PARKED),
        }
        expression = _FREE + (_MOVE_MARK if self._mark else "") + _FORGET
        update = self._rows.update(self._grant.key, expression, when.ENDABLE, values)
        old = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        if last:
            return {"Update": update | old}
        key = {name: update[name] for name in ("TableName", "Key")}
        condition = {"ConditionExpression": when.MINE}
        return {
            "ConditionCheck": key | condition | when.used(when.of(self._grant), when.MINE) | old
        }

    def was_freed_by_this(self, refused: ConditionFailed) -> bool:
        """True: it was the answer that was lost. False: try again. Raises LockLost."""
        self._row = refused.row
        if self._row.get("write_id") == self._write_id:
            return True
        if not items.held_by(self._row, self._grant):
            raise lock_lost(self._grant)
        return False


def _unrefused(puts: list[Write], answer: TransactionCancelled, first: int) -> Iterator[Write]:
    reasons = answer.reasons[first : first + len(puts)]
    return (put for put, reason in zip(puts, reasons, strict=True) if reason is None)


def _not_found() -> ParkedNotFound:
    return ParkedNotFound("nothing is parked under that id")
