"""The peers, each through its public API.

What becomes of a killed worker's message was read in the source of the pinned versions.
"""

import time
from pathlib import Path
from typing import Any

from bench.contender import Card, Contender
from bench.payload import body, number_of

LEASE_SECONDS = 600
MANY = 100_000


class Dirq(Contender):
    """dirq with its own loop: iterate over names, lock, get, remove."""

    def __init__(self, path: Path) -> None:
        from dirq.QueueSimple import QueueSimple  # type: ignore[import-untyped]

        self._queue = QueueSimple(str(path / "dirq"))
        self.push = self._queue.add
        self._listed = False

    def fill(self, count: int) -> None:
        """Push `count` payloads, many from a full minute on: it cuts its folders by it."""
        if count > MANY:
            time.sleep(60 - time.time() % 60)
        super().fill(count)

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


class PersistQueue(Contender):
    """persist-queue."""

    def __init__(self, path: Path) -> None:
        from persistqueue import SQLiteAckQueue
        from persistqueue.exceptions import Empty

        # auto_resume would take over messages that other live processes hold.
        self._queue = SQLiteAckQueue(str(path / "persist"), auto_resume=False)
        self.push, self.close = self._queue.put, self._queue.close
        self._empty = Empty

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


class LiteQueue(Contender):
    """litequeue."""

    def __init__(self, path: Path) -> None:
        from litequeue import LiteQueue as Queue  # type: ignore[import-untyped]

        path.mkdir(exist_ok=True)
        self._queue = Queue(path / "litequeue.db")
        self.push, self.claim = self._queue.put, self._queue.pop
        self.close = self._queue.close

    def fill(self, count: int) -> None:
        """Push `count` payloads before the measurement."""
        with self._queue.transaction():
            super().fill(count)

    def payload(self, number: int) -> str:
        """Return an argument for `push`."""
        return body(number).decode()

    def done(self, claimed: Any) -> None:
        """Complete a claimed message."""
        self._queue.done(claimed.message_id)

    def identity(self, claimed: Any) -> str:
        """Return which payload it is."""
        return number_of(claimed.data)


class Huey(Contender):
    """huey with either storage. `dequeue` removes a message, so none is completed."""

    def __init__(self, storage: Any) -> None:
        self.push, self.claim, self.close = storage.enqueue, storage.dequeue, storage.close

    def identity(self, claimed: bytes) -> str:
        """Return which payload it is."""
        return number_of(bytes(claimed))


def open_huey_files(path: Path) -> Huey:
    """Open huey with files."""
    from huey.storage import FileStorage  # type: ignore[import-untyped]

    return Huey(FileStorage("bench", str(path / "huey")))


def open_huey_sqlite(path: Path) -> Huey:
    """Open huey with SQLite."""
    from huey.storage import SqliteStorage

    return Huey(SqliteStorage("bench", str(path / "huey.db")))


class TaskQueue(Contender):
    """task-queue with `fq://`, without threads and the insert counter, which syncs often."""

    def __init__(self, path: Path) -> None:
        import taskqueue  # type: ignore[import-untyped]

        address = f"fq://{path / 'taskqueue'}"
        self._queue = taskqueue.TaskQueue(address, n_threads=0, progress=False)
        self.done = self._queue.delete
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

    def identity(self, claimed: Any) -> str:
        """Return which payload it is."""
        return number_of(claimed.args[0])


DIRQ = Card("dirq", Dirq, "when purge() is called")
PERSIST_QUEUE = Card("persist-queue", PersistQueue, "when reopened", syncs=True, one_file=True)
LITEQUEUE = Card("litequeue", LiteQueue, "when retried by hand", one_file=True)
HUEY_FILES = Card("huey files", open_huey_files, "no: lost", survives=False)
HUEY_SQLITE = Card(
    "huey SQLite", open_huey_sqlite, "no: lost", survives=False, syncs=True, one_file=True
)
TASK_QUEUE = Card("task-queue", TaskQueue, "yes, after the lease")
PEERS = (DIRQ, PERSIST_QUEUE, LITEQUEUE, HUEY_FILES, HUEY_SQLITE, TASK_QUEUE)
SQLITE_PEERS = (DIRQ, PERSIST_QUEUE, LITEQUEUE, HUEY_SQLITE)
