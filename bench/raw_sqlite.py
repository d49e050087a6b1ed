"""Raw SQLite with leases: the minimum cost of a queue in Python that stores rows in SQLite.

`SQLiteQueue` creates the file, so that tables, indexes, journal mode and page size are the
same. Every step writes the same columns: a push inserts a row, a claim sets state, lease end
and fence, and an ack sets the state and the time. There is one connection, and no message,
check or error handling.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from bench.contender import Card
from bench.holdfast import SQLITE_FILE, open_sqlite_at
from bench.payload import BenchTask, body, number_of, task
from holdfast.queue.message import MessageCodec

FILL_BATCH = 1000
LEASE_MS = 600_000
# The same as the queue's, except that the queue writes its log back in the background.
SETTINGS = """
PRAGMA synchronous = {synchronous};
PRAGMA temp_store = MEMORY;
PRAGMA wal_autocheckpoint = 16384;
"""
PUSH = """
INSERT INTO messages (queue_no, state, at_ms, dedupe, claims, refunds, id, body)
VALUES (1, 0, ?, 0, 0, 0, ?, ?)
"""
# For one message without IN, which needs a temporary table.
_CLAIM = """
UPDATE messages SET state = 1, claims = claims + 1, at_ms = ?2, claimed_ms = ?1, worker_no = 1
WHERE message_no {operator} (
    SELECT message_no FROM messages WHERE queue_no = 1 AND state = 0 AND at_ms <= ?1
    ORDER BY at_ms, message_no LIMIT ?3)
RETURNING message_no, claims, id, CAST(body AS BLOB)
"""
CLAIM_ONE, CLAIM_MANY = _CLAIM.format(operator="="), _CLAIM.format(operator="IN")
ACK = """
UPDATE messages SET state = 2, at_ms = ?
WHERE message_no = ? AND claims = ? AND state = 1 AND queue_no = 1
"""

Claimed = tuple[int, int, str, bytes]


class RawSQLite:
    """Raw SQLite, one by one. Every step is a transaction of one statement."""

    def __init__(self, path: Path, *, synchronous: str = "NORMAL") -> None:
        import sqlite3  # here, as all contenders do, so that memory figures are their own

        if not (path / SQLITE_FILE).exists():
            open_sqlite_at(path).close()
        self._database = sqlite3.connect(path / SQLITE_FILE, isolation_level=None, timeout=30)
        self._database.executescript(SETTINGS.format(synchronous=synchronous))

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        for start in range(0, count, FILL_BATCH):
            numbers = range(start, min(start + FILL_BATCH, count))
            self._write(PUSH, [_make_row(number) for number in numbers])

    def payload(self, number: int) -> tuple[int, str, str]:
        """Return an argument for `push`."""
        return _make_row(number)

    def push(self, payload: tuple[int, str, str]) -> None:
        """Push a payload."""
        self._database.execute(PUSH, payload)

    def claim(self) -> Claimed | None:
        """Claim a message; None if there is none."""
        now_ms = _read_ms()
        values = now_ms, now_ms + LEASE_MS, 1
        claimed: list[Claimed] = self._database.execute(CLAIM_ONE, values).fetchall()
        return claimed[0] if claimed else None

    def done(self, claimed: Claimed) -> None:
        """Complete a claimed message."""
        message_no, fence, _, _ = claimed
        acked = self._database.execute(ACK, (_read_ms(), message_no, fence)).rowcount
        assert acked == 1

    def identity(self, claimed: Claimed) -> str:
        """Return which payload it is."""
        return number_of(claimed[3])

    def close(self) -> None:
        """Close the queue."""
        self._database.close()

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(statement, rows)
        self._database.execute("COMMIT")


class TypedRawSQLite(RawSQLite):
    """Raw SQLite that also builds, serialises, parses and validates typed messages."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._codec = MessageCodec(BenchTask)

    def payload(self, number: int) -> int:  # type: ignore[override]
        """Return an argument for `push`."""
        return number

    def push(self, payload: int) -> None:  # type: ignore[override]
        """Push a message."""
        message = task(payload)
        row = _read_ms(), message.id, self._codec.encode(message).decode()
        self._database.execute(PUSH, row)

    def claim(self) -> Claimed | None:
        """Claim a message; None if there is none."""
        claimed = super().claim()
        if claimed is not None:
            self._codec.decode(claimed[3])
        return claimed


class BatchedRawSQLite(RawSQLite):
    """Raw SQLite in batches. Every step is one transaction, and a claim one statement."""

    def __init__(self, path: Path, batch: int, *, synchronous: str = "NORMAL") -> None:
        super().__init__(path, synchronous=synchronous)
        self._batch = batch

    def payload(self, number: int) -> list[tuple[int, str, str]]:  # type: ignore[override]
        """Return an argument for `push`."""
        return [_make_row(number * self._batch + each) for each in range(self._batch)]

    def push(self, payload: list[tuple[int, str, str]]) -> None:  # type: ignore[override]
        """Push a batch."""
        self._write(PUSH, payload)

    def claim(self) -> list[Claimed] | None:  # type: ignore[override]
        """Claim a batch; None if there is none."""
        now_ms = _read_ms()
        values = now_ms, now_ms + LEASE_MS, self._batch
        return self._database.execute(CLAIM_MANY, values).fetchall() or None

    def done(self, claimed: list[Claimed]) -> None:  # type: ignore[override]
        """Complete a claimed batch."""
        now_ms = _read_ms()
        self._write(ACK, [(now_ms, number, fence) for number, fence, _, _ in claimed])


class TypedBatchedRawSQLite(BatchedRawSQLite):
    """TypedRawSQLite in batches."""

    def __init__(self, path: Path, batch: int) -> None:
        super().__init__(path, batch)
        self._codec = MessageCodec(BenchTask)

    def payload(self, number: int) -> int:  # type: ignore[override]
        """Return an argument for `push`."""
        return number

    def push(self, payload: int) -> None:  # type: ignore[override]
        """Push a batch."""
        messages = [task(payload + each) for each in range(self._batch)]
        now_ms = _read_ms()
        rows = [(now_ms, each.id, self._codec.encode(each).decode()) for each in messages]
        self._write(PUSH, rows)

    def claim(self) -> list[Claimed] | None:
        """Claim a batch; None if there is none."""
        claimed = super().claim()
        for _, _, _, payload in claimed or ():
            self._codec.decode(payload)
        return claimed


def _make_row(number: int) -> tuple[int, str, str]:
    """Return the due time, the id and the body of a message that is due now."""
    return _read_ms(), f"{number:032x}", body(number).decode()


def _read_ms() -> int:
    return int(monotonic() * 1000)


def _make_card(batch: int, *, synchronous: str = "NORMAL") -> Card:
    one = RAW_ONE if synchronous == "NORMAL" else RAW_FULL_ONE
    return replace(
        one,
        name=f"{one.name}, batches of {batch}",
        open=lambda path: BatchedRawSQLite(path, batch, synchronous=synchronous),
        batch=batch,
    )


RAW_ONE = Card(
    name="raw SQLite",
    open=RawSQLite,
    redelivers="",
    survives=False,
    syncs="kernel",
    api="sqlite3 module",
    one_file=True,
)
RAW_TEN, RAW_HUNDRED = _make_card(10), _make_card(100)
RAW_TYPED_ONE = replace(RAW_ONE, name="raw SQLite with typed messages", open=TypedRawSQLite)
RAW_TYPED = replace(
    RAW_HUNDRED,
    name="raw SQLite with typed messages, batches of 100",
    open=lambda path: TypedBatchedRawSQLite(path, 100),
)
RAW_FULL_ONE = replace(
    RAW_ONE,
    name="raw SQLite FULL",
    open=lambda path: RawSQLite(path, synchronous="FULL"),
    syncs="disk",
)
RAW_FULL_FOUR, RAW_FULL_HUNDRED = (_make_card(n, synchronous="FULL") for n in (4, 100))
RAW = (
    RAW_ONE,
    RAW_TEN,
    RAW_HUNDRED,
    RAW_TYPED_ONE,
    RAW_TYPED,
    RAW_FULL_ONE,
    RAW_FULL_FOUR,
    RAW_FULL_HUNDRED,
)
