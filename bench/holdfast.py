"""Holdfast's queues as contenders."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.contender import Card
from bench.payload import BenchTask, task

if TYPE_CHECKING:
    from holdfast import FilesystemQueue, QueueManager
    from holdfast.queues.files.queue import Durability
    from holdfast.queues.sqlite.queue import SQLiteQueue

LEASE_SECONDS = 600
SQLITE_FILE = "queue.db"
FILL_BATCH = 1000
BATCH = 100


def open_queue_at(
    path: Path, *, durability: "Durability" = "process", lease_seconds: float = LEASE_SECONDS
) -> "FilesystemQueue[BenchTask]":
    """Open a file queue in a folder."""
    from holdfast import FilesystemQueue

    return FilesystemQueue(
        path,
        BenchTask,
        campaign="bench",
        queue="tasks",
        lease_seconds=lease_seconds,
        max_attempts=5,
        durability=durability,
    )


def open_sqlite_at(
    path: Path, *, durability: "Durability" = "process", lease_seconds: float = LEASE_SECONDS
) -> "SQLiteQueue[BenchTask]":
    """Open a SQLite queue in a folder."""
    from holdfast.queues.sqlite.queue import SQLiteQueue

    return SQLiteQueue(
        path / SQLITE_FILE, BenchTask, lease_seconds=lease_seconds, durability=durability
    )


class Holdfast:
    """Holdfast through its public API."""

    def __init__(self, queue: "QueueManager[BenchTask]") -> None:
        self._queue = queue

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        for start in range(0, count, FILL_BATCH):
            numbers = range(start, min(start + FILL_BATCH, count))
            self._queue.push_many([task(number) for number in numbers])

    def payload(self, number: int) -> int:
        """Return an argument for `push`."""
        return number

    def push(self, payload: int) -> None:
        """Push a message. Building it validates it, so that is part of the measured time."""
        self._queue.push(task(payload))

    def claim(self) -> BenchTask | None:
        """Claim a message; None if there is none."""
        claimed = self._queue.poll()
        return claimed[0] if claimed else None

    def done(self, claimed: BenchTask) -> None:
        """Complete a claimed message."""
        self._queue.ack(claimed)

    def identity(self, claimed: BenchTask) -> str:
        """Return which payload it is."""
        return claimed.id

    def close(self) -> None:
        """Close the queue."""
        self._queue.close()


class PrebuiltHoldfast(Holdfast):
    """Holdfast with messages built before the clock starts. It is shown, but no bar uses it."""

    def payload(self, number: int) -> BenchTask:  # type: ignore[override]
        """Return an argument for `push`."""
        return task(number)

    def push(self, payload: BenchTask) -> None:  # type: ignore[override]
        """Push a payload."""
        self._queue.push(payload)


class BatchedHoldfast(Holdfast):
    """Holdfast with push_many, poll of many and ack_many. A payload is a batch."""

    def __init__(self, queue: "QueueManager[BenchTask]", batch: int) -> None:
        super().__init__(queue)
        self._batch = batch

    def push(self, payload: int) -> None:
        """Push a batch. Building it is part of the measured time."""
        self._queue.push_many([task(payload + each) for each in range(self._batch)])

    def claim(self) -> list[BenchTask] | None:  # type: ignore[override]
        """Claim a batch; None if there is none."""
        return self._queue.poll(self._batch) or None

    def done(self, claimed: list[BenchTask]) -> None:  # type: ignore[override]
        """Complete a claimed batch."""
        self._queue.ack_many(claimed)


def _batches_of(
    batch: int, card: Card, open_queue: Callable[[Path], "QueueManager[BenchTask]"]
) -> Card:
    return replace(
        card,
        name=f"{card.name}, batches of {batch}",
        open=lambda path: BatchedHoldfast(open_queue(path), batch),
        api=f"push_many, poll({batch}), ack_many",
        batch=batch,
    )


HOLDFAST = Card(
    name="Holdfast",
    open=lambda path: Holdfast(open_queue_at(path)),
    redelivers="yes, after the lease",
    survives=True,
    syncs="kernel",
    api="FilesystemQueue",
)
PREBUILT = replace(
    HOLDFAST,
    name="Holdfast, messages prebuilt",
    open=lambda path: PrebuiltHoldfast(open_queue_at(path)),
)
BATCHED = _batches_of(BATCH, HOLDFAST, open_queue_at)
FILES = (HOLDFAST, PREBUILT, BATCHED)

SQLITE_ONE = replace(
    HOLDFAST,
    name="Holdfast SQLite",
    open=lambda path: Holdfast(open_sqlite_at(path)),
    api="SQLiteQueue",
    one_file=True,
)
SQLITE_PREBUILT = replace(
    SQLITE_ONE,
    name="Holdfast SQLite, messages prebuilt",
    open=lambda path: PrebuiltHoldfast(open_sqlite_at(path)),
)
SQLITE_TEN = _batches_of(10, SQLITE_ONE, open_sqlite_at)
SQLITE_HUNDRED = _batches_of(BATCH, SQLITE_ONE, open_sqlite_at)


def _open_power(path: Path) -> "SQLiteQueue[BenchTask]":
    return open_sqlite_at(path, durability="power")


POWER_ONE = replace(
    SQLITE_ONE,
    name="Holdfast SQLite, power",
    open=lambda path: Holdfast(_open_power(path)),
    syncs="disk",
)
POWER_HUNDRED = _batches_of(BATCH, POWER_ONE, _open_power)
SQLITE = (
    SQLITE_ONE,
    SQLITE_PREBUILT,
    SQLITE_TEN,
    SQLITE_HUNDRED,
    POWER_ONE,
    POWER_HUNDRED,
)
