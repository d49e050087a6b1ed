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


def open_queue_at(
    path: Path, *, durability: "Durability" = "process", lease_seconds: float = LEASE_SECONDS
) -> "FilesystemQueue[BenchTask]":
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
    def __init__(self, path: Path) -> None:
        self._queue = open_queue_at(path)

    def fill(self, count: int) -> None:
        for start in range(0, count, FILL_BATCH):
            numbers = range(start, min(start + FILL_BATCH, count))
            self._queue.push_many([task(number) for number in numbers])

    def payload(self, number: int) -> BenchTask:
        return task(number)

    def push(self, payload: BenchTask) -> None:
        self._queue.push(payload)

    def claim(self) -> BenchTask | None:
        claimed = self._queue.poll()
        return claimed[0] if claimed else None

    def done(self, claimed: BenchTask) -> None:
        self._queue.ack(claimed)

    def identity(self, claimed: BenchTask) -> str:
        return claimed.id

    def close(self) -> None:
        self._queue.close()


class BuildingHoldfast(Holdfast):
    """The same, with the building of each message inside the measured time."""

    def payload(self, number: int) -> int:  # type: ignore[override]
        return number

    def push(self, payload: int) -> None:  # type: ignore[override]
        self._queue.push(task(payload))


HOLDFAST = Card(
    name="Holdfast",
    open=Holdfast,
    redelivers="yes, after the lease",
    survives=True,
    syncs="kernel",
    api="FilesystemQueue",
)

BUILDING = replace(HOLDFAST, name="Holdfast, building each message", open=BuildingHoldfast)
