"""Park batches and take them out again, each slice in one transaction.

    conversations          status parked, outbox and lock removed   if LOCK_HELD; last slice
    conversations-parked   the batch is added                       if it is not there
    conversation-messages  each sid is marked as processed
    conversations-stage    the batch is removed

If a process crashes between two slices, some messages are parked and the others are still
staged. No message is lost, and the lock expires.
"""

from collections.abc import Iterator

from holdfast.chat import store_rules as rules
from holdfast.chat.dynamodb import conditions, items, parked_items
from holdfast.chat.dynamodb.conditions import CALLS
from holdfast.chat.dynamodb.messages import Write
from holdfast.chat.dynamodb.rows import (
    LOCK_ATTRIBUTES,
    MAX_TRIES,
    LockingStore,
    LockRelease,
    build_row_changing_error,
)
from holdfast.chat.dynamodb.tables import EXPIRES_BY
from holdfast.chat.errors import ParkedNotFound
from holdfast.chat.model import ConversationKey, LockGrant, ParkedBatch, Staged, Status
from holdfast.chat.outbox import get_thread_mark
from holdfast.store.dynamodb.client import TransactionCancelled, WriteDone
from holdfast.store.dynamodb.expressions import RETURN_OLD

_SET_PARKED = "SET #conversation_status = :status, #updated_at = :at, #write_id = :write"
_SET_MARK = ", #thread_mark = :mark"
_REMOVE_LOCK = f" REMOVE #outbox, {LOCK_ATTRIBUTES}"


class ParkingStore(LockingStore):
    """The part of the store that parks batches and takes them out again."""

    # -- parking

    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        """Park the batch in slices, and release the lock if a grant is given.

        Raises LockLost if the grant no longer holds the lock.
        """
        if grant is None:
            self._park_unprocessed(parked, remember_until)
        else:
            release = LockRelease(grant, self._read_held_row(grant))
            self._park_slices(release, parked, remember_until)
            self._forget(grant)

    def _park_unprocessed(self, parked: ParkedBatch, until: float) -> None:
        """Park without a lock. Other workers may park or answer the same messages meanwhile."""
        key = parked.key
        for _ in range(MAX_TRIES):
            known = self.processed(key, parked.sids)
            self.drop_staged(key.conversation_id, known)
            parked = rules.drop_processed(parked, known)
            if not parked.staged or self._park_slices(None, parked, until):
                return
        raise build_row_changing_error()

    def _park_slices(
        self, release: LockRelease | None, parked: ParkedBatch, until: float
    ) -> bool:
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
            writes = [
                {"Put": CALLS.put(self._tables.parked, row, conditions.NEW_PARKED)}
                for row in puts
            ]
            processed_writes = self._build_processed_writes(
                parked.key, sids, until, new=release is None
            )
            if release is not None:
                self._park_with_lock(release, parked, is_last, writes, processed_writes)
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

    def _park_with_lock(
        self,
        release: LockRelease,
        parked: ParkedBatch,
        is_last: bool,
        puts: list[Write],
        processed_writes: list[Write],
    ) -> None:
        """Write one slice. The last one releases the lock, the others only check it."""
        for _ in range(MAX_TRIES):
            lock_write = (
                self._build_parked_update(release, parked)
                if is_last
                else self._build_lock_check(release.grant)
            )
            result = self._client.transact([lock_write, *puts, *processed_writes])
            if isinstance(result, WriteDone):
                return
            if (failure := result.reasons[0]) is not None:
                if release.is_done(failure.row):
                    return
            else:
                puts = []  # the batch is parked already, but the other writes are still needed
        raise build_row_changing_error()

    def _build_parked_update(self, release: LockRelease, parked: ParkedBatch) -> Write:
        mark = get_thread_mark(parked.outbox)
        update = self._build_update(
            release.grant.key,
            _SET_PARKED + (_SET_MARK if mark else "") + _REMOVE_LOCK,
            conditions.CAN_RELEASE_LOCK,
            {":at": parked.parked_at, ":mark": mark, **release.bind(Status.PARKED)},
        )
        return {"Update": update | RETURN_OLD}

    def _build_lock_check(self, grant: LockGrant) -> Write:
        check = CALLS.delete(
            self._tables.conversations,
            items.build_conversation_key(grant.key),
            conditions.LOCK_HELD,
            conditions.values_from_grant(grant),
        )
        return {"ConditionCheck": check | RETURN_OLD}

    # -- reading

    def parked(self) -> Iterator[ParkedBatch]:
        """Yield all parked batches, the oldest first, from a table scan."""
        pages = self._client.read_pages("scan", TableName=self._tables.parked)
        return iter(parked_items.batches_from_rows(pages))

    def _find_parked(self, parked_id: str) -> tuple[ParkedBatch, dict[str, int]]:
        """Return the batch, and the number of messages in each of its parts by name.

        The id does not contain the conversation, so the whole table is scanned. Raises
        ParkedNotFound.
        """
        filter_expression = "#parked_id = :id OR #of = :id"
        scan = CALLS.query(
            self._tables.parked, "", {":id": parked_id}, filter_expression, ConsistentRead=True
        )
        rows = list(self._client.read_pages("scan", **scan))
        for parked in parked_items.batches_from_rows(rows):
            own_rows = [
                row for row in rows if row["conversation_id"] == parked.key.conversation_id
            ]
            sizes = {row["parked_id"]: len(row["staged"]) for row in own_rows if "of" in row}
            return parked, dict(sorted(sizes.items()))
        raise _build_not_found_error()

    # -- taking out

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Take the batch out and return it; with `back_to_stage`, stage its messages again.

        Raises ParkedNotFound.
        """
        parked, parts = self._find_parked(parked_id)
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
        deletes = [self._build_parked_delete(parked.key, name) for name in names]
        forgotten = self._build_processed_deletes(
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
            reasons = result.reasons[len(deletes) : len(deletes) + len(puts)]
            puts = [put for put, reason in zip(puts, reasons, strict=True) if reason is None]
        raise build_row_changing_error()

    def _build_unpark_writes(self, key: ConversationKey, parked_id: str) -> list[Write]:
        """Return the writes that take a batch out, for a transaction.

        The transaction is refused if the batch is not parked there.
        """
        query = CALLS.query(
            self._tables.parked,
            "#conversation_id = :conversation AND begins_with(#parked_id, :id)",
            {":conversation": key.conversation_id, ":id": parked_id},
            ConsistentRead=True,
        )
        rows = self._client.read_pages("query", **query)
        parts = [row["parked_id"] for row in rows if row.get("of") == parked_id]
        return [self._build_parked_delete(key, name) for name in (parked_id, *parts)]

    def _build_parked_delete(self, key: ConversationKey, name: str) -> Write:
        row_key = {"conversation_id": {"S": key.conversation_id}, "parked_id": {"S": name}}
        return {"Delete": CALLS.delete(self._tables.parked, row_key, conditions.STILL_PARKED)}

    def _build_restage_put(
        self, parked: ParkedBatch, staged: Staged, now: float, expires_at: float
    ) -> Write:
        row = parked_items.row_for_restaging(staged, parked.key, now)
        row[EXPIRES_BY] = items.to_expiry_seconds(expires_at)
        attributes = items.encode_row(row, "the message")
        return {"Put": CALLS.put(self._tables.stage, attributes, conditions.NEW_FRAGMENT)}


def _build_not_found_error() -> ParkedNotFound:
    return ParkedNotFound("no batch is parked under that id")
