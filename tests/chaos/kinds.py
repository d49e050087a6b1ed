"""The kinds of queues that the chaos tests run on: how to open one and how to audit it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from chaos.hazards import HAZARDS, SQLITE_HAZARDS
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.lease import Lease
from holdfast.queue.message import AnyMessage
from holdfast.queues.files import FilesystemQueue, layout
from holdfast.queues.sqlite.queue import SQLiteQueue
from support.files import audit
from support.sqlite.queue_file import find_faults

_HASH_IN_KEY = slice(10, 18)
_STATES = ("pending", "leased", "completed", "failed")


class End(NamedTuple):
    """The final state of one push."""

    key: str
    mark: str  # of the message id
    state: str
    fence: int


class Files:
    """The file queue. A push has a key, and a message id a mark, by which the queue finds it.

    `find_violations` returns rules that are broken while processes are at work, and
    `find_faults` those that are broken afterwards, and what is left over.
    """

    name = "files"
    hazards = HAZARDS

    def open(self, root: Path, **options: Any) -> FilesystemQueue[Any]:
        return FilesystemQueue(root, AnyMessage, **options)

    def get_key(self, lease: Lease) -> str:
        key: str = lease.handle.task.key
        return key

    def get_mark(self, message_id: str) -> str:
        return layout.hash_id(message_id)[:8]

    def list_ends(self, root: Path) -> list[End]:
        return [
            End(task.key, task.key[_HASH_IN_KEY], state, task.fence)
            for state, task, _ in audit.list_tasks(self._find_folder(root))
        ]

    def find_violations(self, root: Path) -> list[str]:
        """Return files that are incomplete or have unknown names (I-FQ-8)."""
        folder = self._find_folder(root)
        faults = audit.find_faults(folder)
        return [*faults.get("unreadable", []), *faults.get("strangers", [])]

    def find_faults(self, root: Path) -> list[str]:
        for _ in range(2):
            self.open(root).operator.sweep(0)
            SYSTEM_CLOCK.sleep(0.05)  # a file's time may be slightly ahead of the clock
        folder = self._find_folder(root)
        return [*map(str, audit.find_faults(folder).items()), *audit.find_residue(folder)]

    def _find_folder(self, root: Path) -> Path:
        return root / "queues" / "default" / "default"


class SQLite:
    """The queue in a SQLite file."""

    name = "sqlite"
    hazards = SQLITE_HAZARDS

    def open(self, root: Path, **options: Any) -> SQLiteQueue[Any]:
        options.pop("fs", None)
        return SQLiteQueue(self._find_path(root), AnyMessage, **options)

    def get_key(self, lease: Lease) -> str:
        return str(lease.handle)

    def get_mark(self, message_id: str) -> str:
        return message_id

    def list_ends(self, root: Path) -> list[End]:
        with closing(sqlite3.connect(self._find_path(root))) as connection:
            rows = connection.execute("SELECT message_no, id, state, claims FROM messages")
            return [End(str(key), mark, _STATES[state], n) for key, mark, state, n in rows]

    def find_violations(self, root: Path) -> list[str]:
        return list(map(str, find_faults(self._find_path(root))))

    find_faults = find_violations

    def _find_path(self, root: Path) -> Path:
        return root / "work.db"


Kind = Files | SQLite
KINDS: tuple[Kind, ...] = (Files(), SQLite())
