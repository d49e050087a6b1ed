"""SQLiteQueue: every transition of a message is one UPDATE that checks state and fence.

    push         ─▶ PENDING     at: when it is due
    claim        PENDING ─▶ LEASED        claims + 1, at: when the lease ends
    take over    LEASED ─▶ LEASED         claims + 1, once the lease has ended
    renew        LEASED ─▶ LEASED         at: later
    ack          LEASED ─▶ COMPLETED
    nack         LEASED ─▶ PENDING        after a delay
    release      LEASED ─▶ PENDING        refunds + 1: not charged
    dead-letter  LEASED ─▶ FAILED
    cancel       PENDING, LEASED ─▶ FAILED    claims + 1, refunds + 1
    redrive      FAILED ─▶ PENDING        refunds = claims

A claim raises `claims`, and every other transition demands the value of its own claim. So a
stale holder changes nothing.
"""

import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from math import ceil
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from holdfast.adapters.local.sqlite.connection import Durability
from holdfast.adapters.local.sqlite.database import Database
from holdfast.adapters.local.sqlite.queue import inspection, search
from holdfast.adapters.local.sqlite.queue.schema import (
    COMPLETED,
    FAILED,
    QUEUES,
)
from holdfast.adapters.local.sqlite.queue.timeline import Timeline
from holdfast.adapters.modes import Access
from holdfast.core import events as ev
from holdfast.core.backoff import Backoff
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import (
    LeaseLost,
    MalformedMessage,
    MessageTooLarge,
    NewerSchema,
    QueueUnavailable,
    StoreUnavailable,
)
from holdfast.core.events import Events
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal
from holdfast.core.process import after_fork
from holdfast.core.queue.info import CANCELLED
from holdfast.core.queue.manager import (
    ANY_FIELDS,
    MessageInfo,
    MessageState,
    Progress,
    QueueManager,
    QueueStats,
    ignore_progress,
)
from holdfast.core.queue.message import (
    MAX_BYTES,
    AnyMessage,
    M,
    MessageCodec,
    attach_lease,
    get_lease,
)

NEWER_SCHEMA_DELAY_SECONDS = 30.0
_MAX_PUSHED = 500  # messages in one transaction
_MAX_CHANGED = 500  # rows in one transaction of an operator's command
_MAX_DETAIL = 8000  # characters of a traceback, enough to act on
_SEEN_INTERVAL_MS = 10_000
_TAKEN_AWAY = "another worker took the message over, or an operator cancelled it"

_PUSH = """
INSERT INTO messages (queue_no, state, at_ms, dedupe, claims, refunds, id, body)
VALUES (?, 0, ?, ?, 0, 0, ?, ?) ON CONFLICT DO NOTHING
"""
# Messages whose lease ended come first, because they have waited longest.
_CLAIM = """
UPDATE messages
SET state = 1, claims = claims + 1, at_ms = :ends_ms, claimed_ms = :now_ms,
    taken_from = CASE state WHEN 1 THEN worker_no END, worker_no = :worker_no
WHERE message_no IN (
    SELECT * FROM (
        SELECT message_no FROM messages
        WHERE queue_no = :queue_no AND state = 1 AND at_ms <= :now_ms
        ORDER BY at_ms LIMIT :limit)
    UNION ALL SELECT * FROM (
        SELECT message_no FROM messages
        WHERE queue_no = :queue_no AND state = 0 AND at_ms <= :now_ms
        ORDER BY at_ms, message_no LIMIT :limit)
    LIMIT :limit)
RETURNING message_no, id, claims, refunds, taken_from, body
"""
_HELD = " WHERE message_no = ? AND claims = ? AND state = 1 AND queue_no = ?"
_RENEW = "UPDATE messages SET at_ms = ?" + _HELD
_ACK = "UPDATE messages SET state = 2, at_ms = ?" + _HELD
_PUT_BACK = "UPDATE messages SET state = 0, at_ms = ?, refunds = refunds + ?" + _HELD
_DEAD_LETTER = (
    "UPDATE messages SET state = 3, at_ms = ?, refunds = refunds + ?, reason = ?" + _HELD
)
_ADD_ATTEMPT = """
INSERT INTO attempts
SELECT ?1, ifnull(max(entry_no), 0) + 1, ?2, ?3, ?4, ?5, ?6, ?7
FROM attempts WHERE message_no = ?1
"""
_CANCEL = """
UPDATE messages
SET state = 3, at_ms = ?, claims = claims + 1, refunds = refunds + 1, reason = ?
WHERE message_no = ?
"""


class SQLiteQueue(QueueManager[M]):
    """A queue in a SQLite file, for all threads and processes of one machine.

    `durability="process"` survives kill -9 of any process. `"power"` also survives a power
    cut. `dedupe=True`: an id that is pending, leased or completed is not pushed twice.
    `access="group"`: a file that is created now is shared with the group of its folder.
    With `create=False` a missing queue is not created; it raises QueueUnavailable.
    `machine_clock` is the clock that the processes of the machine share, if a test gives this
    worker a clock of its own.
    """

    renew_batch = 500
    poll_batch = 100

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # the default of M
        *,
        queue: str = "default",
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        durability: Durability = "process",
        dedupe: bool = False,
        access: Access = "private",
        create: bool = True,
        busy_seconds: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
        machine_clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        super().__init__(
            queue,
            lease_seconds=lease_seconds,
            max_attempts=max_attempts,
            backoff=backoff,
            clock=clock,
            events=events,
        )
        self.dedupe = dedupe
        self._lease_ms = ceil(lease_seconds * 1000)
        self._codec: MessageCodec[M] = MessageCodec(model)
        if not create:
            _require_file(Path(path))
        with _translate_errors():
            self._database = Database(Path(path), QUEUES, durability, busy_seconds, access)
            with ExitStack() as after_error:
                after_error.callback(self._database.close)
                self._timeline = Timeline(self._database, machine_clock or clock)
                self._queue_no = _find_queue(self._database, queue, create=create)
                after_error.pop_all()
        self._build_process_state()
        after_fork.run_after_fork(self, SQLiteQueue._build_process_state)

    def _build_process_state(self) -> None:
        """Build what a fork must not share: the identity of this process."""
        self._worker_no = 0  # 0: not registered
        self._seen_ms = 0

    # -- producing

    def push(self, message: M, *, delay_seconds: float = 0.0) -> str:
        body = self._codec.encode(message)
        if delay_seconds:
            self._check_delay(delay_seconds)
        self._push_rows([(_require_text(message.id), body)], delay_seconds)
        return message.id

    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        """Push messages in batches. If a message or the disk fails, its batch is not pushed."""
        self._check_delay(delay_seconds)
        pushed: list[str] = []
        batch: list[tuple[str, bytes]] = []
        for message in messages:
            batch.append((_require_text(message.id), self._codec.encode(message)))
            pushed.append(message.id)
            if len(batch) >= _MAX_PUSHED:
                self._push_rows(batch, delay_seconds)
                batch = []
        self._push_rows(batch, delay_seconds)
        return pushed

    def _push_rows(self, batch: Sequence[tuple[str, bytes]], delay_seconds: float) -> None:
        delay_ms = int(max(0.0, delay_seconds) * 1000)

        def insert(connection: Connection) -> None:
            due_ms = self._timeline.read_ms() + delay_ms
            rows = [(self._queue_no, due_ms, self.dedupe, *each) for each in batch]
            connection.executemany(_PUSH, rows)

        if batch:
            with _translate_errors():
                self._database.write(insert)

    # -- consuming

    def _claim(self, limit: int) -> list[M]:
        claimed: list[M] = []
        while len(claimed) < limit:
            asked_at = self.clock.monotonic()
            missing = limit - len(claimed)
            with _translate_errors():
                rows = self._database.write(partial(self._claim_rows, limit=missing))
            received = (self._receive(row, asked_at) for row in rows)
            claimed += [message for message in received if message is not None]
            if len(rows) < missing:
                break
        return claimed

    def _claim_rows(self, connection: Connection, limit: int) -> list[tuple[Any, ...]]:
        now_ms = self._timeline.read_ms()
        if now_ms >= self._seen_ms + _SEEN_INTERVAL_MS:
            self._mark_seen(connection, now_ms)
        values = {
            "queue_no": self._queue_no,
            "worker_no": self._worker_no,
            "now_ms": now_ms,
            "ends_ms": now_ms + self._lease_ms + 1,
            "limit": limit,
        }
        rows = connection.execute(_CLAIM, values).fetchall()
        rows.sort()
        for message_no, _, claims, refunds, taken_from, _ in rows:
            if taken_from is not None:
                reason = "its lease ran out: the worker died or froze"
                connection.execute(
                    _ADD_ATTEMPT,
                    (
                        message_no,
                        claims - 1 - refunds,
                        "lost",
                        now_ms,
                        taken_from,
                        reason,
                        None,
                    ),
                )
        return rows

    def _mark_seen(self, connection: Connection, now_ms: int) -> None:
        """Show that this worker is running, and register it the first time."""
        self._seen_ms = now_ms
        if self._worker_no:
            connection.execute(
                "UPDATE workers SET seen_ms = ? WHERE worker_no = ?", (now_ms, self._worker_no)
            )
            return
        host, pid = socket.gethostname(), os.getpid()
        cursor = connection.execute(
            "INSERT INTO workers (worker_id, host, pid, seen_ms) VALUES ('', ?, ?, ?)",
            (host, pid, now_ms),
        )
        self._worker_no = cursor.lastrowid or 0
        connection.execute(
            "UPDATE workers SET worker_id = ? WHERE worker_no = ?",
            (f"{host}-{pid}-{self._worker_no}", self._worker_no),
        )

    def _receive(self, row: tuple[Any, ...], asked_at: float) -> M | None:
        """Return the message of a claimed row, or None if it must not be delivered."""
        message_no, message_id, claims, refunds, taken_from, body = row
        attempt = claims - refunds
        lease = Lease(
            self,
            message_no,
            message_id=message_id,
            attempt=attempt,
            fence=claims,
            claimed_at=asked_at,
            seconds=self.lease_seconds,
        )
        if taken_from is not None:
            from_worker = inspection.read_worker_id(self._database, taken_from)
            self.events.emit(ev.TakenOver(self.name, message_id, attempt, from_worker))
        if attempt > self.max_attempts:
            self._dead_letter_exhausted(lease)
            return None
        try:
            message = self._codec.decode(body)
        except NewerSchema as error:
            self._put_back(lease, NEWER_SCHEMA_DELAY_SECONDS, refunds=1)
            self.events.emit(ev.SchemaTooNew(self.name, message_id, attempt, error.version))
            return None
        except (MalformedMessage, ValueError) as error:
            self._dead_letter_by_poll(lease, f"malformed: {error}", "malformed")
            return None
        attach_lease(message, lease)
        return message

    def _dead_letter_exhausted(self, lease: Lease) -> None:
        """Dead-letter a message that has no attempts left; this claim is not charged."""
        tried = lease.attempt - 1
        past = inspection.read_attempts(self._database, lease.handle)
        last = f"; the last: {past[-1].reason}" if past else ""
        log_reason = f"gave up after {tried} attempts"
        self._dead_letter_by_poll(lease, log_reason + last, log_reason, refunds=1)

    def _dead_letter_by_poll(
        self, lease: Lease, reason: str, log_reason: str, refunds: int = 0
    ) -> None:
        if self._move_to_failed(lease, reason, None, refunds) is None:
            self._count_dead_letter()
            attempt = lease.attempt - refunds
            self.events.emit(
                ev.DeadLettered(self.name, lease.message_id, attempt, reason=log_reason)
            )

    # -- renewing and settling

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        lease_ms = ceil(seconds * 1000) + 1

        def renew_all(connection: Connection) -> list[int]:
            ends_ms = self._timeline.read_ms() + lease_ms
            return [
                connection.execute(_RENEW, (ends_ms, *self._held(lease))).rowcount
                for lease in leases
            ]

        with _translate_errors():
            counts = self._database.write(renew_all)
        return [RENEWED if count else Refused(_TAKEN_AWAY) for count in counts]

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        def ack_all(connection: Connection) -> list[bool]:
            now_ms = self._timeline.read_ms()
            return [self._ack_row(connection, lease, now_ms) for lease in leases]

        with _translate_errors():
            return [
                None if acked else _make_lease_lost() for acked in self._database.write(ack_all)
            ]

    def _ack_row(self, connection: Connection, lease: Lease, now_ms: int) -> bool:
        if connection.execute(_ACK, (now_ms, *self._held(lease))).rowcount:
            if lease.fence > 1:
                connection.execute(
                    "DELETE FROM checkpoints WHERE message_no = ?", (lease.handle,)
                )
            return True
        # If it is completed under this fence, the same ack came earlier in this batch.
        row = connection.execute(
            "SELECT 1 FROM messages WHERE message_no = ? AND claims = ? AND state = 2 "
            "AND queue_no = ?",
            self._held(lease),
        ).fetchone()
        return row is not None

    def _held(self, lease: Lease) -> tuple[int, int, int]:
        """Return what identifies a claim that was neither settled nor taken over."""
        return lease.handle, lease.fence, self._queue_no

    def _put_back(self, lease: Lease, delay_seconds: float, refunds: int) -> LeaseLost | None:
        def put_back(connection: Connection) -> int:
            due_ms = self._timeline.read_ms() + int(delay_seconds * 1000)
            values = (due_ms, refunds, *self._held(lease))
            return connection.execute(_PUT_BACK, values).rowcount

        with _translate_errors():
            return None if self._database.write(put_back) else _make_lease_lost()

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        def nack(connection: Connection) -> int:
            now_ms = self._timeline.read_ms()
            values = (now_ms + int(delay_seconds * 1000), 0, *self._held(lease))
            changed = connection.execute(_PUT_BACK, values).rowcount
            if changed:
                self._add_attempt(connection, lease, "retried", now_ms, reason, detail)
            return changed

        with _translate_errors():
            return None if self._database.write(nack) else _make_lease_lost()

    def _release(self, lease: Lease) -> LeaseLost | None:
        return self._put_back(lease, 0.0, refunds=1)

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        return self._move_to_failed(lease, reason, detail, 0)

    def _move_to_failed(
        self, lease: Lease, reason: str, detail: str | None, refunds: int
    ) -> LeaseLost | None:
        def move(connection: Connection) -> int:
            now_ms = self._timeline.read_ms()
            values = (now_ms, refunds, reason, *self._held(lease))
            changed = connection.execute(_DEAD_LETTER, values).rowcount
            if changed:
                self._add_attempt(
                    connection, lease, "dead-lettered", now_ms, reason, detail, refunds
                )
            return changed

        with _translate_errors():
            return None if self._database.write(move) else _make_lease_lost()

    def _add_attempt(
        self,
        connection: Connection,
        lease: Lease,
        outcome: str,
        now_ms: int,
        reason: str,
        detail: str | None,
        refunds: int = 0,
    ) -> None:
        detail = detail[-_MAX_DETAIL:] if detail else None
        attempt = lease.attempt - refunds
        values = (
            lease.handle,
            attempt,
            outcome,
            now_ms,
            self._worker_no,
            reason[:2000],
            detail,
        )
        connection.execute(_ADD_ATTEMPT, values)

    # -- checkpoints

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        try:
            value = json.dumps(checkpoint, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedMessage(f"a checkpoint must be plain JSON data: {error}") from None
        if len(value) > MAX_BYTES:
            raise MessageTooLarge(
                f"the checkpoint is {len(value):,} bytes, the limit is {MAX_BYTES:,}: store it "
                "elsewhere and save its address"
            )

        def save(connection: Connection) -> int:
            return connection.execute(
                "INSERT OR REPLACE INTO checkpoints SELECT message_no, claims, ? FROM messages"
                + _HELD,
                (value, *self._held(lease)),
            ).rowcount

        with _translate_errors():
            saved = self._database.write(save)
        if saved < 1:
            lease.lose(_TAKEN_AWAY)
            raise _make_lease_lost()

    def load_checkpoint(self, message: M) -> Any:
        lease = get_lease(message)
        with _translate_errors():
            return inspection.read_checkpoint(self._database, lease.handle, lease.fence)

    # -- for operators

    def stats(self) -> QueueStats:
        with _translate_errors():
            return inspection.count_stats(
                self._database, self._queue_no, self._timeline.read_ms()
            )

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        with _translate_errors():
            yield from inspection.list_messages(self._database, self._queue_no, state, limit)

    def find(self, message_id: str) -> list[MessageInfo]:
        with _translate_errors():
            return inspection.find(self._database, self._queue_no, message_id)

    def search(
        self,
        state: MessageState | None = None,
        *,
        where: Mapping[str, str] = ANY_FIELDS,
        error: str | None = None,
        limit: int = 100,
        on_progress: Progress = ignore_progress,
    ) -> Iterator[MessageInfo]:
        with _translate_errors():
            messages = search.search(
                self._database, self._queue_no, state, where, error, on_progress
            )
            yield from islice(messages, limit)

    def cancel(self, message_id: str) -> int:
        with _translate_errors():
            # Outside the transaction, because all messages are read to find those of an id.
            numbers = inspection.list_live(self._database, self._queue_no, message_id)
            return self._database.write(
                lambda connection: sum(self._cancel(connection, number) for number in numbers)
            )

    def _cancel(self, connection: Connection, message_no: int) -> bool:
        row = connection.execute(
            "SELECT claims - refunds, CASE state WHEN 1 THEN worker_no END FROM messages "
            "WHERE message_no = ? AND state IN (0, 1)",
            (message_no,),
        ).fetchone()
        if row is None:
            return False
        attempt, worker_no = row
        now_ms = self._timeline.read_ms()
        connection.execute(_CANCEL, (now_ms, CANCELLED, message_no))
        entry = (message_no, attempt, "cancelled", now_ms, worker_no, CANCELLED, None)
        connection.execute(_ADD_ATTEMPT, entry)
        return True

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = ignore_progress
    ) -> int:
        redriven = 0
        for numbers in self._slice_dead_letters(message_id):

            def redrive(connection: Connection, numbers: Sequence[int] = numbers) -> int:
                return sum(self._redrive(connection, number) for number in numbers)

            with _translate_errors():
                redriven += self._database.write(redrive)
            on_progress(len(numbers))
        return redriven

    def _redrive(self, connection: Connection, message_no: int) -> bool:
        now_ms = self._timeline.read_ms()
        # A message whose id was pushed again with dedupe stays a dead letter.
        changed = connection.execute(
            "UPDATE OR IGNORE messages SET state = 0, at_ms = ?, "
            "refunds = claims, reason = NULL WHERE message_no = ? AND state = 3 "
            "RETURNING claims",
            (now_ms, message_no),
        ).fetchall()
        for (_,) in changed:
            values = (message_no, 0, "redriven", now_ms, None, "redriven by an operator", None)
            connection.execute(_ADD_ATTEMPT, values)
        return bool(changed)

    def drop(self, message_id: str) -> int:
        dropped = 0
        for numbers in self._slice_dead_letters(message_id):
            dropped += self._delete(numbers, FAILED)
        return dropped

    def purge(self, older_than_seconds: float) -> int:
        cutoff_ms = self._timeline.read_ms() - int(older_than_seconds * 1000)
        purged = 0
        with _translate_errors():
            while numbers := inspection.list_completed_before(
                self._database, self._queue_no, cutoff_ms, _MAX_CHANGED
            ):
                purged += self._delete(numbers, COMPLETED)
        return purged

    def _slice_dead_letters(self, message_id: str | None) -> Iterator[list[int]]:
        with _translate_errors():
            numbers = inspection.list_dead_letters(self._database, self._queue_no, message_id)
        for start in range(0, len(numbers), _MAX_CHANGED):
            yield numbers[start : start + _MAX_CHANGED]

    def _delete(self, numbers: Sequence[int], state: int) -> int:
        def delete(connection: Connection) -> int:
            deleted = 0
            for number in numbers:
                if connection.execute(
                    "DELETE FROM messages WHERE message_no = ? AND state = ?", (number, state)
                ).rowcount:
                    deleted += 1
                    connection.execute("DELETE FROM attempts WHERE message_no = ?", (number,))
                    connection.execute(
                        "DELETE FROM checkpoints WHERE message_no = ?", (number,)
                    )
            return deleted

        with _translate_errors():
            return self._database.write(delete)

    def close(self) -> None:
        self._database.close()


def _require_file(path: Path) -> None:
    with suppress(PermissionError):  # opening the file reports it
        if path.exists() and path.stat().st_size:
            return
        raise QueueUnavailable(
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
        raise QueueUnavailable(
            f"there is no queue {name!r} in {path!r}: check the name, or push to it first"
        )
    return int(rows[0]["queue_no"])


def _make_lease_lost() -> LeaseLost:
    return LeaseLost(f"the lease is gone: {_TAKEN_AWAY}")


def _require_text(message_id: str) -> str:
    """Return an id that the database can store as text. Raises MalformedMessage."""
    try:
        message_id.encode()
    except UnicodeEncodeError:
        raise MalformedMessage(f"message id {message_id!r} is not valid Unicode text") from None
    return message_id


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise errors of the database as those of a queue."""
    try:
        yield
    except StoreUnavailable as error:
        raise QueueUnavailable(str(error)) from error
