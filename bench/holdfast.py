"""Holdfast as a contender."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.contender import Card
from bench.payload import BenchTask, task

if TYPE_CHECKING:
    from holdfast import FilesystemQueue
    from holdfast.adapters.local.filesystem.queue import Durability

LEASE_SECONDS = 600
FILL_BATCH = 1000
BATCH = 100


def open_queue_at(
    path: Path, *, durability: "Durability" = "process", lease_seconds: float = LEASE_SECONDS
) -> "FilesystemQueue[BenchTask]":
    """Open a Holdfast queue in a folder."""
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


class Holdfast:
    """Holdfast through its public API."""

    def __init__(self, path: Path) -> None:
        self._queue = open_queue_at(path)

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
    """Holdfast with push_many, poll(100) and ack_many. It is shown, but no bar uses it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._unpushed: list[BenchTask] = []
        self._unworked: list[BenchTask] = []
        self._unacked: list[BenchTask] = []

    def push(self, payload: int) -> None:
        """Push a payload."""
        self._unpushed.append(task(payload))
        if len(self._unpushed) >= BATCH:
            self._queue.push_many(self._unpushed)
            self._unpushed = []

    def claim(self) -> BenchTask | None:
        """Claim a message; None if there is none."""
        if not self._unworked:
            self._unworked = self._queue.poll(BATCH)[::-1]
        return self._unworked.pop() if self._unworked else None

    def done(self, claimed: BenchTask) -> None:
        """Complete a claimed message."""
        self._unacked.append(claimed)
        if len(self._unacked) >= BATCH:
            self._queue.ack_many(self._unacked)
            self._unacked = []

    def close(self) -> None:
        """Close the queue."""
        self._queue.push_many(self._unpushed)
        self._queue.ack_many(self._unacked)
        super().close()


HOLDFAST = Card(
    name="Holdfast",
    open=Holdfast,
    redelivers="yes, after the lease",
    survives=True,
    syncs="kernel",
    api="FilesystemQueue",
)

PREBUILT = replace(HOLDFAST, name="Holdfast, messages prebuilt", open=PrebuiltHoldfast)
BATCHED = replace(
    HOLDFAST,
    name="Holdfast, batches of 100",
    open=BatchedHoldfast,
    api="push_many, poll(100), ack_many",
)
