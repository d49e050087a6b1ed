"""Kill a process between any two SQL statements, whichever they are."""

import sqlite3
from collections.abc import Callable
from threading import Lock
from typing import Any

from support.files.crash import die


class StatementCounter:
    """Counts the statements of all connections once armed, BEGIN and COMMIT included.

    The process dies before statement number `kill_at`, and so after the one before it. Made in
    a child process, because it replaces `sqlite3.connect` for the rest of it.
    """

    def __init__(self, kill_at: int | None = None) -> None:
        self._kill_at = kill_at
        self._lock = Lock()
        self.armed = False
        self.count = 0
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect

        def connect_traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection = connect(*args, **kwargs)
            connection.set_trace_callback(self._trace)
            return connection

        sqlite3.connect = connect_traced  # type: ignore[assignment]

    def _trace(self, statement: str) -> None:
        with self._lock:
            if not self.armed:
                return
            self.count += 1
            if self.count == self._kill_at:
                die()
