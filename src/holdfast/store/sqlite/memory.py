"""A SQLite database in memory, with the transactions of `Database` and without its file.

What protects a file is not needed here: the log, syncs, checks of the path, one connection per
thread, and forks. All threads share one connection, one at a time.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar
from weakref import finalize

from holdfast.store.sqlite.connection import Schema
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.rows import RowConnection, read_rows
from holdfast.store.sqlite.writer import Executed, Operation

T = TypeVar("T")


class MemoryDatabase(Database):
    """The tables of a store, which end with the last store that uses them."""

    def __init__(self, schema: Schema) -> None:
        self.path = Path(":memory:")
        self._lock = RLock()
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=RowConnection
        )
        finalize(self, self._connection.close)
        schema.create(self._connection)

    @contextmanager
    def begin_read(self) -> Iterator[RowConnection]:
        """Begin a transaction that sees one state of the rows, because no other thread runs."""
        with self._lock:
            yield self._connection

    @contextmanager
    def begin_write(self, *, durable: bool = True) -> Iterator[RowConnection]:
        """Begin a transaction as the only writer. Either all of its writes happen or none."""
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    def write(self, operation: Operation[T]) -> T:
        """Run an operation in a transaction, and return its result."""
        with self.begin_write() as connection:
            return operation(connection)

    def execute(self, statement: str, values: Sequence[Any]) -> Executed:
        """Write with one statement. Return how many rows it changed, and those it returned."""
        with self._lock:
            cursor = self._connection.execute(statement, values)
            rows = cursor.fetchall()  # before the count, because this ends the statement
            return cursor.rowcount, rows

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows that one statement reads, as dicts by column."""
        with self._lock:
            return read_rows(self._connection.execute(statement, values))

    def close(self) -> None:
        """Keep the data, because another view of the store may use it."""
