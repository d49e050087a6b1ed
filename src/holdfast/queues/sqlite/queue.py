"""SQLiteQueue: every transition of a message is one UPDATE that checks state and fence.

    push         ─▶ PENDING     at: when it is due
    claim        PENDING ─▶ LEASED        claims + 1, at: when the lease ends
    take over    LEASED ─▶ LEASED         claims + 1, once the lease has ended
    renew        LEASED ─▶ LEASED         at: later
    ack          LEASED ─▶ COMPLETED
    nack         LEASED ─▶ PENDING        after a delay
    release      LEASED ─▶ PENDING        refunds + 1: not charged
    dead-letter  LEASED ─▶ FAILED

A claim raises `claims`, and every other transition demands the value of its own claim. So a
stale holder changes nothing. What operators do is in operator.py.
"""

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from math import ceil
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Unpack

from holdfast.errors import LeaseLost, QueueNotFound, QueueUnavailable
from holdfast.lease import after_fork
from holdfast.lease.clock import Clock
from holdfast.lease.lease import RENEWED, Lease, Refused, Renewal
from holdfast.queue.admission import Delivery
from holdfast.queue.info import QueueStats
from holdfast.queue.manager import QueueKeywords, QueueManager, encode_checkpoint
from holdfast.queue.message import AnyMessage, M, get_lease, pack_headers, unpack_headers
from holdfast.queues.sqlite import inspection
from holdfast.queues.sqlite.operator import ADD_ATTEMPT, SQLiteOperator
from holdfast.queues.sqlite.schema import QUEUES
from holdfast.queues.sqlite.timeline import agree_on_offset
from holdfast.store.file_modes import Access
from holdfast.store.sqlite.connection import Durability
from holdfast.store.sqlite.database import Database
from holdfast.version import read_version

_MAX_PUSHED = 500  # messages in one transaction
_MAX_DETAIL = 8000  # characters of a traceback, enough to act on
_MAX_REASON = 2000
_SEEN_INTERVAL_MS = 10_000
_TAKE_OVER_INTERVAL_MS = 250  # while there are always messages that are due
_SLOT_WAIT_SECONDS = 0.002  # about as long as a commit that waits for the disk
_TAKEN_AWAY = "another worker took the message over, or an operator cancelled it"

PUSH = """
INSERT INTO messages (queue_no, state, at_ms, dedupe, claims, refunds, id, body, headers)
VALUES (?, 0, ?, ?, 0, 0, ?, ?, ?) ON CONFLICT DO NOTHING
"""
# The types are requested, because another program may have stored values of other types.
_CLAIM = """
UPDATE messages
SET state = 1, claims = CAST(claims AS INTEGER) + 1, at_ms = ?1, claimed_ms = ?2, worker_no = ?3
WHERE message_no {chosen} (
    SELECT message_no FROM messages
    WHERE queue_no = ?4 AND state = 0 AND at_ms <= ?2 ORDER BY at_ms, message_no LIMIT ?5)
RETURNING message_no, claims, CAST(refunds AS INTEGER), NULL, CAST(id AS TEXT),
    CAST(body AS BLOB), headers
"""
# A claim of one is a third faster, because it needs no list of numbers.
_CLAIM_ONE, _CLAIM_MANY = _CLAIM.format(chosen="="), _CLAIM.format(chosen="IN")
_EXPIRED = """
SELECT message_no, CAST(claims AS INTEGER) + 1, CAST(refunds AS INTEGER), worker_no,
    CAST(id AS TEXT), CAST(body AS BLOB), headers
FROM messages WHERE queue_no = ? AND state = 1 AND at_ms <= ? ORDER BY at_ms LIMIT ?
"""
_TAKE_OVER = """
UPDATE messages
SET claims = CAST(claims AS INTEGER) + 1, at_ms = ?, claimed_ms = ?, worker_no = ?
WHERE message_no = ?
"""
_IS_AVAILABLE = """
SELECT 1 FROM messages WHERE queue_no = ? AND state IN (0, 1) AND at_ms <= ? LIMIT 1
"""
_HELD = " WHERE message_no = ? AND claims = ? AND state = 1 AND queue_no = ?"
_RENEW = "UPDATE messages SET at_ms = ?" + _HELD
_IS_HELD = "SELECT 1 FROM messages" + _HELD
_ACK = "UPDATE messages SET state = 2, at_ms = ?" + _HELD
_IS_ACKED = (
    "SELECT 1 FROM messages WHERE message_no = ? AND claims = ? AND state = 2 AND queue_no = ?"
)
_PUT_BACK = "UPDATE messages SET state = 0, at_ms = ?, refunds = refunds + ?" + _HELD
_DEAD_LETTER = "UPDATE messages SET state = 3, at_ms = ?, refunds = ?, reason = ?" + _HELD
_SAVE_CHECKPOINT = (
    "INSERT OR REPLACE INTO checkpoints SELECT message_no, claims, ? FROM messages" + _HELD
)
_SAVE_BEAT = (
    "INSERT OR REPLACE INTO beats SELECT message_no, claims, ?, ? FROM messages" + _HELD
)
_DELETE_OLD_BEATS = """
DELETE FROM beats WHERE NOT EXISTS (
    SELECT 1 FROM messages
    WHERE messages.message_no = beats.message_no AND claims = fence AND state = 1)
"""
_DELETE_CHECKPOINTS = "DELETE FROM checkpoints WHERE message_no = ?"

_SAVE_RESULT = (
    "INSERT OR REPLACE INTO results SELECT message_no, queue_no, id, claims, ? FROM messages"
    + _HELD
)

_ACKED: Sequence[LeaseLost | None] = (None,)

# message_no, claims, refunds, the worker that it was taken over from, id, body, headers
ClaimedRow = tuple[int, int, int, int | None, str, bytes, str | None]


class SQLiteQueue(QueueManager[M]):
    """A queue in a SQLite file, for all threads and processes of one machine.

    `durability="process"` survives kill -9 of any process. `"power"` also survives a power
    cut. `dedupe=True`: an id that is pending, leased or completed is not pushed twice.
    `access="group"`: a file that is created now is shared with the group of its folder.
    With `create=False` a missing queue is not created; it raises QueueNotFound.
    `machine_clock` is the clock that the processes of the machine share, if a test gives this
    worker a clock of its own.
    """

    renew_batch = 500
    poll_batch = 100

    def __init__(
        self,
        path: str | os.PathLike[str] | Database,
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # the default of M
        *,
        queue: str = "default",
        durability: Durability = "process",
        dedupe: bool = False,
        access: Access = "private",
        create: bool = True,
        busy_seconds: float = 10.0,
        machine_clock: Clock | None = None,
        **settings: Unpack[QueueKeywords],
    ) -> None:
        super().__init__(queue, model, **settings)
        self.dedupe = dedupe
        if durability == "power":
            # A claim waits for the disk, so slots that are free at the same time share one.
            self.slot_wait_seconds = _SLOT_WAIT_SECONDS
        if isinstance(path, Database):
            self._database: Database = path
        else:
            if not create:
                _require_file(Path(path))
            self._database = Database(Path(path), QUEUES, durability, busy_seconds, access)
        with ExitStack() as after_error:
            after_error.callback(self._database.close)
            offset_ms = agree_on_offset(self._database, machine_clock or self.clock)
            self._queue_no = _find_queue(self._database, queue, create=create)
            after_error.pop_all()
        self._offset_ms, self._monotonic = offset_ms, (machine_clock or self.clock).monotonic
        self._read_ms = _make_time_reader(self._monotonic, offset_ms)
        self.operator = SQLiteOperator(
            self.name, self.capabilities, self._database, self._queue_no, self._read_ms
        )
        self._build_process_state()
        after_fork.run_after_fork(self, SQLiteQueue._build_process_state)

    def _build_process_state(self) -> None:
        """Build what a fork must not share: the identity of this process."""
        self._worker_no = 0  # 0: not registered
        self._seen_ms = 0
        self._take_over_at_ms = 0
        self._was_empty = False
        self._checkpointed: set[int] = set()  # messages that this process saved a checkpoint of

    def _read_ms_after(self, seconds: float) -> int:
        """Return the time after so many seconds, rounded up, because a lease counts on it."""
        return ceil((self._monotonic() + seconds) * 1000) + self._offset_ms

    # -- producing

    def _push(self, message: M, delay_seconds: float) -> str:
        body = self._codec.encode(message).decode()
        due_ms = self._get_due_ms(delay_seconds)
        headers = None if self.tracing is None else pack_headers(message)
        self._database.execute(
            PUSH, (self._queue_no, due_ms, self.dedupe, message.id, body, headers)
        )
        return message.id

    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        """Push messages in batches. If a message or the disk fails, its batch is not pushed."""
        due_ms = self._get_due_ms(delay_seconds)
        pushed: list[str] = []
        batch: list[tuple[Any, ...]] = []
        queue_no, dedupe, encode = self._queue_no, self.dedupe, self._codec.encode
        for message in messages:
            headers = None if self.tracing is None else pack_headers(message)
            body = encode(message).decode()
            batch.append((queue_no, due_ms, dedupe, message.id, body, headers))
            pushed.append(message.id)
            if len(batch) >= _MAX_PUSHED:
                self._push_batch(batch)
                batch = []
        if batch:
            self._push_batch(batch)
        return pushed

    def _push_batch(self, batch: Sequence[tuple[Any, ...]]) -> None:
        self._database.write(lambda connection: connection.executemany(PUSH, batch))

    def _get_due_ms(self, delay_seconds: float) -> int:
        if not delay_seconds:
            return self._read_ms()
        self._check_delay(delay_seconds)
        return self._read_ms() + int(max(0.0, delay_seconds) * 1000)

    # -- claiming

    def _claim(self, limit: int) -> Sequence[Delivery]:
        asked_at = self.clock.monotonic()
        deliveries: list[Delivery] = []
        rows = self._claim_rows(limit)
        for number, claims, refunds, taken_from, message_id, body, packed in rows:
            problem = from_worker = headers = None
            if claims <= refunds:  # it would have more attempts than allowed
                problem = f"malformed: {claims} claims, {refunds} of them not charged"
            if taken_from is not None:
                from_worker = inspection.read_worker_id(self._database, taken_from)
            if packed is not None and self.tracing is not None:
                headers = unpack_headers(packed)
            deliveries.append(
                Delivery(
                    number,
                    message_id,
                    body,
                    claims - refunds,
                    claims,
                    asked_at,
                    from_worker,
                    headers,
                    problem,
                )
            )
        return deliveries

    def _claim_rows(self, limit: int) -> list[ClaimedRow]:
        """Claim messages that are due, and those whose lease ended.

        Leases that ended are looked for when nothing else is due, and otherwise from time to
        time, because messages may always be due. While a look returns as many as were asked
        for, the next poll looks again, so a dead worker's messages come before the backlog.
        """
        now_ms = self._read_ms()
        # An idle worker only reads, so that it does not keep others from writing, except
        # that it shows from time to time that it is there.
        if self._was_empty and not self._is_available(now_ms):
            self._mark_idle(now_ms)
            return []
        if now_ms >= self._seen_ms + _SEEN_INTERVAL_MS:
            # after the commit, because a rollback undoes the registration, too
            self._worker_no = self._database.write(self._mark_seen)
            self._seen_ms = now_ms
        has_looked = now_ms >= self._take_over_at_ms
        rows = self._take_over(limit, now_ms) if has_looked else []
        if len(rows) < limit:
            try:
                rows += self._claim_due(limit - len(rows), now_ms)
            except QueueUnavailable:
                if not rows:
                    raise
        if not rows and not has_looked:
            rows = self._take_over(limit, now_ms)
        self._was_empty = not rows
        return rows

    def _mark_idle(self, now_ms: int) -> None:
        if now_ms < self._seen_ms + _SEEN_INTERVAL_MS:
            return
        self._seen_ms = now_ms
        with suppress(QueueUnavailable), self._database.begin_write(durable=False) as writer:
            self._worker_no = self._mark_seen(writer)

    def _is_available(self, now_ms: int) -> bool:
        return bool(self._database.query(_IS_AVAILABLE, (self._queue_no, now_ms)))

    def _claim_due(self, limit: int, now_ms: int) -> list[ClaimedRow]:
        ends_ms = self._read_ms_after(self.lease_seconds)
        values = (ends_ms, now_ms, self._worker_no, self._queue_no, limit)
        if limit == 1:
            return self._database.execute(_CLAIM_ONE, values)[1]
        return sorted(self._database.execute(_CLAIM_MANY, values)[1])

    def _take_over(self, limit: int, now_ms: int) -> list[ClaimedRow]:
        self._take_over_at_ms = now_ms + _TAKE_OVER_INTERVAL_MS
        rows = self._database.write(lambda connection: self._take_over_rows(connection, limit))
        if len(rows) == limit:  # more may have ended, and they must not wait for the backlog
            self._take_over_at_ms = now_ms
        return rows

    def _take_over_rows(self, connection: Connection, limit: int) -> list[ClaimedRow]:
        now_ms = self._read_ms()
        values = self._queue_no, now_ms, limit
        rows = connection.execute(_EXPIRED, values).fetchall()
        ends_ms = self._read_ms_after(self.lease_seconds)
        for message_no, claims, refunds, worker_no, *_ in rows:
            connection.execute(_TAKE_OVER, (ends_ms, now_ms, self._worker_no, message_no))
            reason = "its lease ran out: the worker died or froze"
            attempt = claims - 1 - refunds
            entry = (message_no, attempt, "lost", now_ms, worker_no, reason, None)
            connection.execute(ADD_ATTEMPT, entry)
        return rows

    def _mark_seen(self, connection: Connection) -> int:
        """Show that this worker is running, register it the first time, return its number."""
        now_ms = self._read_ms()
        if self._worker_no:
            connection.execute(
                "UPDATE workers SET seen_ms = ? WHERE worker_no = ?", (now_ms, self._worker_no)
            )
            connection.execute(_DELETE_OLD_BEATS)
            return self._worker_no
        host, pid = socket.gethostname(), os.getpid()
        cursor = connection.execute(
            "INSERT INTO workers (worker_id, host, pid, seen_ms) VALUES ('', ?, ?, ?)",
            (host, pid, now_ms),
        )
        worker_no = cursor.lastrowid or 0
        connection.execute(
            "UPDATE workers SET worker_id = ? WHERE worker_no = ?",
            (f"{host}-{pid}-{worker_no}", worker_no),
        )
        lease_ms = ceil(self.lease_seconds * 1000)
        connection.execute(
            "INSERT INTO worker_notes VALUES (?, ?, ?, ?, ?)",
            (worker_no, self._queue_no, read_version(), now_ms, lease_ms),
        )
        return worker_no

    def _explain_exhausted(self, delivery: Delivery) -> str:
        past = inspection.read_histories(self._database, [delivery.handle])[delivery.handle]
        return f"; the last: {past[-1].reason}" if past else ""

    # -- renewing and settling

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        ends_ms = self._read_ms_after(seconds)
        beats = [self._make_beat(lease) for lease in leases if lease.has_beaten]

        def renew(connection: Connection) -> list[bool]:
            results = self._change(connection, leases, _RENEW, ends_ms, _IS_HELD)
            connection.executemany(_SAVE_BEAT, beats)
            if self._worker_no:
                self._mark_busy(connection)
            return results

        results = self._database.write(renew)
        return [RENEWED if renewed else Refused(_TAKEN_AWAY) for renewed in results]

    def _make_beat(self, lease: Lease) -> tuple[Any, ...]:
        """Return the values of a beat, on the timeline of the queue."""
        since_ms = int((self.clock.monotonic() - lease.last_beat_at) * 1000)
        return self._read_ms() - since_ms, lease.progress, *self._held(lease)

    def _mark_busy(self, connection: Connection) -> None:
        """Show that this worker is running, though it polls only when a slot is free."""
        now_ms = self._read_ms()
        if now_ms >= self._seen_ms + _SEEN_INTERVAL_MS:
            self._mark_seen(connection)
            self._seen_ms = now_ms

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        now_ms = self._read_ms()
        if len(leases) == 1:
            [lease] = leases
            if lease.fence == 1 and not self._checkpointed:
                values = (now_ms, lease.handle, 1, self._queue_no)
                if self._database.execute(_ACK, values)[0]:
                    return _ACKED
        checkpointed = [
            (lease.handle,)
            for lease in leases
            if lease.fence > 1 or lease.handle in self._checkpointed
        ]

        def ack(connection: Connection) -> list[bool]:
            results = self._change(connection, leases, _ACK, now_ms, _IS_ACKED)
            if checkpointed:
                connection.executemany(_DELETE_CHECKPOINTS, checkpointed)
            return results

        results = self._database.write(ack)
        self._checkpointed.difference_update(handle for (handle,) in checkpointed)
        return [None if acked else _make_lease_lost() for acked in results]

    def _change(
        self,
        connection: Connection,
        leases: Sequence[Lease],
        statement: str,
        at_ms: int,
        check: str,
    ) -> list[bool]:
        """Change the messages that are still held, and return which are changed now.

        One that the same claim changed before, in this batch or earlier, is changed, too.
        """
        queue_no = self._queue_no
        values = [(at_ms, lease.handle, lease.fence, queue_no) for lease in leases]
        if connection.executemany(statement, values).rowcount == len(values):
            return [True] * len(values)
        return [
            connection.execute(check, self._held(lease)).fetchone() is not None
            for lease in leases
        ]

    def _held(self, lease: Lease) -> tuple[int, int, int]:
        """Return what identifies a claim that was neither settled nor taken over."""
        return lease.handle, lease.fence, self._queue_no

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        values = (self._get_due_ms(delay_seconds), 0)
        return self._end_attempt(lease, _PUT_BACK, values, "retried", reason, detail)

    def _release(self, lease: Lease, delay_seconds: float = 0.0) -> LeaseLost | None:
        values = (self._get_due_ms(delay_seconds), 1, *self._held(lease))
        changed, _ = self._database.execute(_PUT_BACK, values)
        return None if changed else _make_lease_lost()

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        values = (self._read_ms(), lease.fence - lease.attempt, reason)
        return self._end_attempt(lease, _DEAD_LETTER, values, "dead-lettered", reason, detail)

    def _end_attempt(
        self,
        lease: Lease,
        statement: str,
        values: tuple[Any, ...],
        outcome: str,
        reason: str,
        detail: str | None,
    ) -> LeaseLost | None:
        """Change a message that is still held, and add the attempt to its history."""
        reason, detail = reason[:_MAX_REASON], detail[-_MAX_DETAIL:] if detail else None
        attempt, now_ms = lease.attempt, self._read_ms()
        entry = (lease.handle, attempt, outcome, now_ms, self._worker_no, reason, detail)

        def end(connection: Connection) -> int:
            changed = connection.execute(statement, (*values, *self._held(lease))).rowcount
            if changed:
                connection.execute(ADD_ATTEMPT, entry)
            return changed

        return None if self._database.write(end) else _make_lease_lost()

    # -- checkpoints

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        value = encode_checkpoint(checkpoint)
        self._checkpointed.add(lease.handle)
        saved, _ = self._database.execute(_SAVE_CHECKPOINT, (value, *self._held(lease)))
        _require_held(lease, saved)

    def load_checkpoint(self, message: M) -> Any:
        lease = get_lease(message)
        return inspection.read_checkpoint(self._database, lease.handle, lease.fence - 1)

    # -- results

    def _save_result(self, lease: Lease, result: bytes) -> None:
        saved, _ = self._database.execute(_SAVE_RESULT, (result, *self._held(lease)))
        _require_held(lease, saved)

    def load_result(self, message_id: str) -> Any:
        return inspection.read_result(self._database, self._queue_no, message_id)

    # -- for operators

    def stats(self) -> QueueStats:
        return inspection.count_stats(self._database, self._queue_no, self._read_ms())

    def close(self) -> None:
        self._database.close()


def _make_time_reader(monotonic: Callable[[], float], offset_ms: int) -> Callable[[], int]:
    """Return the function that reads the time on the machine's timeline."""
    return lambda: int(monotonic() * 1000) + offset_ms


def _require_file(path: Path) -> None:
    with suppress(PermissionError):  # opening the file reports it
        if path.exists() and path.stat().st_size:
            return
        raise QueueNotFound(
            f"there is no queue at {str(path)!r}: check the name, or push to it first"
        )


def _find_queue(database: Database, name: str, *, create: bool) -> int:
    """Return the number of a queue, which is created if it is missing and `create` is True."""
    find = "SELECT queue_no FROM queues WHERE name = ?"
    if not (rows := database.query(find, (name,))) and create:
        insert = "INSERT INTO queues (name) VALUES (?) ON CONFLICT DO NOTHING"
        with database.begin_write() as connection:
            connection.execute(insert, (name,))
        rows = database.query(find, (name,))
    if not rows:
        path = str(database.path)
        raise QueueNotFound(
            f"there is no queue {name!r} in {path!r}: check the name, or push to it first"
        )
    return int(rows[0]["queue_no"])


def _require_held(lease: Lease, changed: int) -> None:
    """Raise LeaseLost if a statement changed no row, because the lease is another's."""
    if changed < 1:
        lease.lose(_TAKEN_AWAY)
        raise _make_lease_lost()


def _make_lease_lost() -> LeaseLost:
    return LeaseLost(f"the lease is gone: {_TAKEN_AWAY}")
