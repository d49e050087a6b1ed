"""Holdfast's queues as contenders, and the least that such a queue costs in Python.

bare system calls   the file queue's calls through the os module, without message or lease
raw SQLite          the SQLite queue's statements on its own tables, with one connection and
                    without checks; the typed one also builds and validates messages
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from bench.contender import Card, Contender
from bench.payload import BenchTask, body, number_of, task

LEASE_SECONDS = 600
FILL_BATCH = 1000
BATCH = 100
SQLITE_FILE = "queue.db"


def open_files_at(path: Path, **options: Any) -> Any:
    """Open a file queue in a folder."""
    from holdfast import FilesystemQueue

    options = {"lease_seconds": LEASE_SECONDS, "max_attempts": 5, **options}
    return FilesystemQueue(path, BenchTask, campaign="bench", queue="tasks", **options)


def open_sqlite_at(path: Path, **options: Any) -> Any:
    """Open a SQLite queue in a folder."""
    from holdfast.queues.sqlite.queue import SQLiteQueue

    options = {"lease_seconds": LEASE_SECONDS, **options}
    return SQLiteQueue(path / SQLITE_FILE, BenchTask, **options)


class Holdfast(Contender):
    """Holdfast through its public API. A push builds and validates its messages."""

    def __init__(self, queue: Any, batch: int = 1) -> None:
        self._queue, self._batch = queue, batch

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        for start in range(0, count, FILL_BATCH):
            numbers = range(start, min(start + FILL_BATCH, count))
            self._queue.push_many([task(number) for number in numbers])

    def payload(self, number: int) -> int:
        """Return an argument for `push`."""
        return number

    def push(self, payload: int) -> None:
        """Push a message or a batch."""
        if self._batch == 1:
            self._queue.push(task(payload))
        else:
            self._queue.push_many([task(payload + each) for each in range(self._batch)])

    def claim(self) -> BenchTask | list[BenchTask] | None:
        """Claim a message or a batch; None if there is none."""
        claimed: list[BenchTask] = self._queue.poll(self._batch)
        return None if not claimed else claimed if self._batch > 1 else claimed[0]

    def done(self, claimed: Any) -> None:
        """Complete what was claimed."""
        (self._queue.ack if self._batch == 1 else self._queue.ack_many)(claimed)

    def identity(self, claimed: BenchTask) -> str:
        """Return which payload it is."""
        return claimed.id

    def close(self) -> None:
        """Close the queue."""
        self._queue.close()


# -- the bare system calls

SEGMENT = 2000
_MAKE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC


class Bare(Contender):
    """The bare calls through the os module."""

    def __init__(self, path: Path) -> None:
        for folder in ("pending", "leased", "completed"):
            (path / folder).mkdir(exist_ok=True)
        self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        segments = sorted(os.listdir(path / "pending"))
        self._pushed = sum(len(os.listdir(path / "pending" / name)) for name in segments)
        self._claimed = 0

    def push(self, payload: bytes) -> None:
        """Push a payload."""
        number, self._pushed = self._pushed, self._pushed + 1
        segment = f"pending/1763237639123-abcdef-{number // SEGMENT:06d}"
        if number % SEGMENT == 0:
            os.mkdir(segment, dir_fd=self._root)
        aside = f"{segment}/.{number:018d}"
        file = os.open(aside, _MAKE, 0o666, dir_fd=self._root)
        os.write(file, payload)
        os.close(file)
        self._move(aside, _name_pending(number))

    def claim(self) -> tuple[str, bytes]:
        """Claim a message."""
        number, self._claimed = self._claimed, self._claimed + 1
        leased = f"leased/{number:018d}~1~abcdefgh~mhzk3abc+goxc.json"
        self._move(_name_pending(number), leased)
        file = os.open(leased, _READ, dir_fd=self._root)
        payload = os.read(file, 4096)
        os.close(file)
        return leased, payload

    def done(self, claimed: tuple[str, bytes]) -> None:
        """Complete a claimed message."""
        self._move(claimed[0], f"completed/{claimed[0][7:34]}.json")

    def identity(self, claimed: tuple[str, bytes]) -> str:
        """Return which payload it is."""
        return number_of(claimed[1])

    def close(self) -> None:
        """Close the queue."""
        os.close(self._root)

    def _move(self, source: str, target: str) -> None:
        os.rename(source, target, src_dir_fd=self._root, dst_dir_fd=self._root)


def _name_pending(number: int) -> str:
    segment = f"pending/1763237639123-abcdef-{number // SEGMENT:06d}"
    return f"{segment}/{number:018d}~0~1763237639123.json"


# -- raw SQLite

LEASE_MS = LEASE_SECONDS * 1000
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
CLAIM = """
UPDATE messages SET state = 1, claims = claims + 1, at_ms = ?2, claimed_ms = ?1, worker_no = 1
WHERE message_no {operator} (
    SELECT message_no FROM messages WHERE queue_no = 1 AND state = 0 AND at_ms <= ?1
    ORDER BY at_ms, message_no LIMIT ?3)
RETURNING message_no, claims, id, CAST(body AS BLOB)
"""
ACK = """
UPDATE messages SET state = 2, at_ms = ?
WHERE message_no = ? AND claims = ? AND state = 1 AND queue_no = 1
"""

Row = tuple[int, str, str]  # due time, id and body
Claimed = tuple[int, int, str, bytes]


class RawSQLite(Contender):
    """Raw SQLite: a claim is one statement, and every step one transaction."""

    def __init__(
        self, path: Path, batch: int = 1, *, typed: bool = False, synchronous: str = "NORMAL"
    ) -> None:
        import sqlite3

        from holdfast.queue.message import MessageCodec

        if not (path / SQLITE_FILE).exists():
            open_sqlite_at(path).close()
        self._database = sqlite3.connect(path / SQLITE_FILE, isolation_level=None, timeout=30)
        self._database.executescript(SETTINGS.format(synchronous=synchronous))
        self._batch = batch
        self._codec = MessageCodec(BenchTask) if typed else None
        self._claim = CLAIM.format(operator="=" if batch == 1 else "IN")

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        for start in range(0, count, FILL_BATCH):
            numbers = range(start, min(start + FILL_BATCH, count))
            self._write(PUSH, [_make_row(number) for number in numbers])

    def payload(self, number: int) -> int | list[Row]:
        """Return the rows of a batch, or its number, if the push builds them."""
        if self._codec is not None:
            return number
        return [_make_row(number * self._batch + each) for each in range(self._batch)]

    def push(self, payload: Any) -> None:
        """Push a message or a batch."""
        rows: Sequence[Row] = payload
        if self._codec is not None:
            messages = [task(payload + each) for each in range(self._batch)]
            now_ms, encode = _read_ms(), self._codec.encode
            rows = [(now_ms, message.id, encode(message).decode()) for message in messages]
        self._write(PUSH, rows)

    def claim(self) -> Any:
        """Claim a message or a batch; None if there is none."""
        now_ms = _read_ms()
        values = now_ms, now_ms + LEASE_MS, self._batch
        claimed: list[Claimed] = self._database.execute(self._claim, values).fetchall()
        if self._codec is not None:
            for row in claimed:
                self._codec.decode(row[3])
        return None if not claimed else claimed if self._batch > 1 else claimed[0]

    def done(self, claimed: Any) -> None:
        """Complete what was claimed."""
        now_ms, rows = _read_ms(), [claimed] if self._batch == 1 else claimed
        self._write(ACK, [(now_ms, number, fence) for number, fence, _, _ in rows])

    def identity(self, claimed: Claimed) -> str:
        """Return which payload it is."""
        return number_of(claimed[3])

    def close(self) -> None:
        """Close the queue."""
        self._database.close()

    def _write(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        if len(rows) == 1:
            self._database.execute(statement, rows[0])
            return
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(statement, rows)
        self._database.execute("COMMIT")


def _make_row(number: int) -> Row:
    """Return the due time, the id and the body of a message that is due now."""
    return _read_ms(), f"{number:032x}", body(number).decode()


def _read_ms() -> int:
    return int(monotonic() * 1000)


# -- the cards


def _name(name: str, batch: int) -> str:
    return name if batch == 1 else f"{name}, batches of {batch}"


def _make_own(name: str, opening: Any, batch: int = 1, **facts: Any) -> Card:
    open_queue = lambda path: Holdfast(opening(path), batch)  # noqa: E731
    lease = "yes, after the lease"
    return Card(_name(name, batch), open_queue, lease, batch=batch, **facts)


def _make_raw(name: str, batch: int = 1, syncs: bool = False, **options: Any) -> Card:
    synchronous = "FULL" if syncs else "NORMAL"
    opening = partial(RawSQLite, batch=batch, synchronous=synchronous, **options)
    return Card(_name(name, batch), opening, syncs=syncs, one_file=True, batch=batch)


_files_power = partial(open_files_at, durability="power")
_sqlite_power = partial(open_sqlite_at, durability="power")
BARE = Card("bare system calls (Python)", Bare, survives=False)
FILES = _make_own("Holdfast", open_files_at)
FILES_BATCHED = _make_own("Holdfast", open_files_at, BATCH)
FILES_POWER = _make_own("Holdfast, power", _files_power, BATCH, syncs=True)
SQLITE = _make_own("Holdfast SQLite", open_sqlite_at, one_file=True)
SQLITE_BATCHED = _make_own("Holdfast SQLite", open_sqlite_at, BATCH, one_file=True)
SQLITE_POWER = _make_own("Holdfast SQLite, power", _sqlite_power, one_file=True, syncs=True)
SQLITE_POWER_BATCHED = _make_own(
    "Holdfast SQLite, power", _sqlite_power, BATCH, one_file=True, syncs=True
)
RAW, RAW_BATCHED = _make_raw("raw SQLite"), _make_raw("raw SQLite", BATCH)
TYPED = _make_raw("raw SQLite with typed messages", typed=True)
TYPED_BATCHED = _make_raw("raw SQLite with typed messages", BATCH, typed=True)
RAW_FULL = _make_raw("raw SQLite FULL", syncs=True)
RAW_FULL_FOUR = _make_raw("raw SQLite FULL", 4, syncs=True)
RAW_FULL_BATCHED = _make_raw("raw SQLite FULL", BATCH, syncs=True)
OWN = (
    BARE, FILES, FILES_BATCHED, FILES_POWER, SQLITE, SQLITE_BATCHED, SQLITE_POWER,
    SQLITE_POWER_BATCHED, RAW, RAW_BATCHED, TYPED, TYPED_BATCHED, RAW_FULL, RAW_FULL_FOUR,
    RAW_FULL_BATCHED,
)  # fmt: skip
