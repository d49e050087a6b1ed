"""The peers, each through its public API.

Imports are inside the constructors: a measurement's process loads only the queue it
measures, so memory figures are its own. What becomes of a killed worker's message was
read in the source of the pinned versions.
"""

import time
from pathlib import Path
from typing import Any

from bench.contender import Card
from bench.payload import body, number_of

LEASE_SECONDS = 600
MANY = 100_000


class Dirq:
    """dirq with its own loop: iterate over names, lock, get, remove."""

    def __init__(self, path: Path) -> None:
        from dirq.QueueSimple import QueueSimple  # type: ignore[import-untyped]

        self._queue = QueueSimple(str(path / "dirq"))
        self._listed = False

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        if count > MANY:
            time.sleep(60 - time.time() % 60)  # see the notes of backlog.py
        for number in range(count):
            self.push(self.payload(number))

    def payload(self, number: int) -> bytes:
        """Return an argument for `push`."""
        return body(number)

    def push(self, payload: bytes) -> None:
        """Push a payload."""
        self._queue.add(payload)

    def claim(self) -> tuple[str, bytes] | None:
        """Claim a message; None if there is none."""
        while True:
            # `first` lists, `next` walks that list; an empty name is its end.
            name = self._queue.next() if self._listed else self._queue.first()
            if not name and not self._listed:
                return None
            self._listed = bool(name)
            if name and self._queue.lock(name):
                return name, self._queue.get(name)

    def done(self, claimed: tuple[str, bytes]) -> None:
        """Complete a claimed message."""
        self._queue.remove(claimed[0])

    def identity(self, claimed: tuple[str, bytes]) -> str:
        """Return which payload it is."""
        return number_of(claimed[1])

    def close(self) -> None:
        """Close the queue."""


class PersistQueue:
    """persist-queue."""

    def __init__(self, path: Path) -> None:
        from persistqueue import SQLiteAckQueue
        from persistqueue.exceptions import Empty

        # auto_resume would take over messages that other live processes hold.
        self._queue = SQLiteAckQueue(str(path / "persist"), auto_resume=False)
        self._empty = Empty

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        for number in range(count):
            self.push(self.payload(number))

    def payload(self, number: int) -> bytes:
        """Return an argument for `push`."""
        return body(number)

    def push(self, payload: bytes) -> None:
        """Push a payload."""
        self._queue.put(payload)

    def claim(self) -> dict[str, Any] | None:
        """Claim a message; None if there is none."""
        try:
            claimed: dict[str, Any] = self._queue.get(block=False, raw=True)
        except self._empty:
            return None
        return claimed

    def done(self, claimed: dict[str, Any]) -> None:
        """Complete a claimed message."""
        self._queue.ack(id=claimed["pqid"])

    def identity(self, claimed: dict[str, Any]) -> str:
        """Return which payload it is."""
        return number_of(claimed["data"])

    def close(self) -> None:
        """Close the queue."""
        self._queue.close()


class LiteQueue:
    """litequeue."""

    def __init__(self, path: Path) -> None:
        from litequeue import LiteQueue as Queue  # type: ignore[import-untyped]

        path.mkdir(exist_ok=True)
        self._queue = Queue(path / "litequeue.db")

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        with self._queue.transaction():
            for number in range(count):
                self.push(self.payload(number))

    def payload(self, number: int) -> str:
        """Return an argument for `push`."""
        return body(number).decode()

    def push(self, payload: str) -> None:
        """Push a payload."""
        self._queue.put(payload)

    def claim(self) -> Any | None:
        """Claim a message; None if there is none."""
        return self._queue.pop()

    def done(self, claimed: Any) -> None:
        """Complete a claimed message."""
        self._queue.done(claimed.message_id)

    def identity(self, claimed: Any) -> str:
        """Return which payload it is."""
        return number_of(claimed.data)

    def close(self) -> None:
        """Close the queue."""
        self._queue.close()


class Huey:
    """huey with either storage. `dequeue` removes a message, so none is completed."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        for number in range(count):
            self.push(self.payload(number))

    def payload(self, number: int) -> bytes:
        """Return an argument for `push`."""
        return body(number)

    def push(self, payload: bytes) -> None:
        """Push a payload."""
        self._storage.enqueue(payload)

    def claim(self) -> bytes | None:
        """Claim a message; None if there is none."""
        claimed: bytes | None = self._storage.dequeue()
        return claimed

    def done(self, claimed: bytes) -> None:
        """Complete a claimed message."""

    def identity(self, claimed: bytes) -> str:
        """Return which payload it is."""
        return number_of(bytes(claimed))

    def close(self) -> None:
        """Close the queue."""
        self._storage.close()


def open_huey_files(path: Path) -> Huey:
    """Open huey with files."""
    from huey.storage import FileStorage  # type: ignore[import-untyped]

    return Huey(FileStorage("bench", str(path / "huey")))


def open_huey_sqlite(path: Path) -> Huey:
    """Open huey with SQLite."""
    from huey.storage import SqliteStorage

    return Huey(SqliteStorage("bench", str(path / "huey.db")))


class TaskQueue:
    """task-queue with `fq://`, without threads and the insert counter, which syncs often."""

    def __init__(self, path: Path) -> None:
        import taskqueue  # type: ignore[import-untyped]

        address = f"fq://{path / 'taskqueue'}"
        self._queue = taskqueue.TaskQueue(address, n_threads=0, progress=False)
        self._task = taskqueue.FunctionTask
        self._empty = taskqueue.QueueEmptyError

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        tasks = (self.payload(number) for number in range(count))
        self._queue.insert(tasks, total=count, skip_insert_counter=True)

    def payload(self, number: int) -> Any:
        """Return an argument for `push`."""
        return self._task(("bench", "handle"), [body(number).decode()], {}, None)

    def push(self, payload: Any) -> None:
        """Push a payload."""
        self._queue.insert(payload, skip_insert_counter=True)

    def claim(self) -> Any | None:
        """Claim a message; None if there is none."""
        try:
            return self._queue.lease(seconds=LEASE_SECONDS)
        except self._empty:
            return None

    def done(self, claimed: Any) -> None:
        """Complete a claimed message."""
        self._queue.delete(claimed)

    def identity(self, claimed: Any) -> str:
        """Return which payload it is."""
        return number_of(claimed.args[0])

    def close(self) -> None:
        """Close the queue."""


PEERS = (
    Card(
        name="dirq",
        open=Dirq,
        redelivers="when purge() is called",
        survives=True,
        syncs="kernel",
        api="QueueSimple",
    ),
    Card(
        name="persist-queue",
        open=PersistQueue,
        redelivers="when reopened",
        survives=True,
        syncs="disk",
        api="SQLiteAckQueue",
        one_file=True,
    ),
    Card(
        name="litequeue",
        open=LiteQueue,
        redelivers="when retried by hand",
        survives=True,
        syncs="kernel",
        api="LiteQueue",
        one_file=True,
    ),
    Card(
        name="huey files",
        open=open_huey_files,
        redelivers="no: lost",
        survives=False,
        syncs="kernel",
        api="FileStorage",
    ),
    Card(
        name="huey SQLite",
        open=open_huey_sqlite,
        redelivers="no: lost",
        survives=False,
        syncs="disk",
        api="SqliteStorage",
        one_file=True,
    ),
    Card(
        name="task-queue",
        open=TaskQueue,
        redelivers="yes, after the lease",
        survives=True,
        syncs="kernel",
        api="TaskQueue fq://",
    ),
)
