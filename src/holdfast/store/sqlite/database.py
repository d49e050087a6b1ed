"""Run transactions on one file, from any thread, before and after a fork.

SQLite keeps a list of its process's locks in memory. A forked child inherits the list but not
the locks. It would write without any lock, and its parent would delete the log that the child
writes to. Connections are therefore closed before a fork and opened again when they are needed.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path
from threading import Condition, Lock, RLock, Thread
from typing import Any, TypeVar
from weakref import WeakSet, finalize

from holdfast.errors import ConfigError, HoldfastError, StoreUnavailable
from holdfast.store.file_modes import Access
from holdfast.store.rows import Row
from holdfast.store.sqlite import path_check
from holdfast.store.sqlite.connection import (
    MAX_LOG_BYTES,
    SYNCHRONOUS,
    Durability,
    Schema,
    connect,
    explain_error,
)
from holdfast.store.sqlite.rows import RowConnection, read_rows
from holdfast.store.sqlite.writer import Executed, Operation, Writer

T = TypeVar("T")

_CHECKPOINT_BYTES = MAX_LOG_BYTES // 2
_RESTART_MS = 20
_ROWS_AT_ONCE = 1_000
_databases: "WeakSet[Database]" = WeakSet()


class Database:
    """A SQLite file with its connections.

    Raises ConfigError for a fault that an operator must repair, and the schema's `unavailable`
    for one that may pass.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        durability: Durability,
        busy_seconds: float,
        access: Access = "private",
    ) -> None:
        if durability not in SYNCHRONOUS:
            raise ConfigError(f"durability must be 'power' or 'process', not {durability!r}")
        self.path = path.absolute()
        self._schema = schema
        self._durability: Durability = durability
        self._busy_seconds = busy_seconds
        self._generation = 0  # rises when all connections must be closed
        self._orphaned = False
        self._file_id: tuple[int, int] | None = None  # if no other file may take its place
        self._kept_writer = True
        self._reset()
        try:
            path_check.prepare_file(
                self.path, content=schema.content, alternative=schema.alternative, access=access
            )
        except StoreUnavailable as error:
            raise schema.unavailable(str(error)) from error
        _watch_forks()
        with _registry:
            _databases.add(self)
        with self.begin_read():
            pass  # report a fault of the file now and not with the first call

    def _reset(self) -> None:
        self._idle: list[RowConnection] = []
        self._lent = 0
        self._forking = False
        self._condition = Condition(Lock())
        self._writer = Writer(
            self.path,
            self._schema,
            self._connect,
            self._busy_seconds,
            _CHECKPOINT_BYTES // self._schema.page_bytes,
            self._start_checkpoint,
        )
        self.execute: Callable[[str, Sequence[Any]], Executed] = self._writer.execute
        """Write with one statement, faster than with `write`.

        Returns the number of rows that it changed, and the rows that it returned.
        """
        self._checkpoint: Thread | None = None

    # -- transactions

    @contextmanager
    def begin_read(self) -> Iterator[RowConnection]:
        """Begin a transaction that sees one state of the file throughout."""
        with self._lend() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                with suppress(sqlite3.Error):
                    connection.execute("COMMIT")

    @contextmanager
    def begin_write(self, *, durable: bool = True) -> Iterator[RowConnection]:
        """Begin a transaction as the only writer. Either all of its writes happen or none.

        A write that is not `durable` reaches the disk with the next durable one. A power cut in
        between undoes it as if it had not been requested.
        """
        relax = not durable and self._durability == "power"
        with self._writer.begin(relax_sync=SYNCHRONOUS["process"] if relax else None) as writer:
            yield writer

    def write(self, operation: Operation[T], *, durable: bool = True) -> T:
        """Run an operation in a transaction, and return its result after the commit.

        Operations of several threads share a transaction if they are durable, and each is
        undone alone if it fails. One may be called again if it was undone, so it must change
        nothing but the file.
        """
        if durable:
            return self._writer.run(operation)
        with self.begin_write(durable=False) as connection:
            return operation(connection)

    def read(self, body: Callable[[RowConnection], T]) -> T:
        """Return what the body reads in a transaction that sees one state of the file."""
        with self.begin_read() as connection:
            return body(connection)

    def scan(
        self,
        table: str,
        where: Row,
        *,
        key: str,
        order_by: str = "",
        descending: bool = False,
    ) -> Iterator[Row]:
        """Yield the rows, each from a transaction of its own.

        A slow reader therefore does not pin the WAL. A row that was deleted meanwhile is left
        out.
        """
        with self.begin_read() as rows:
            keys = rows.select(
                table, where, columns=key, order_by=order_by, descending=descending
            )
        for listed in keys:
            with self.begin_read() as rows:
                current = rows.select(table, listed)
            yield from current

    def split(self, entries: Iterable[T], _measure: object = None) -> Iterator[list[T]]:
        """Yield the entries in groups, so that other writers are not kept waiting."""
        remaining = iter(entries)
        while group := list(islice(remaining, _ROWS_AT_ONCE)):
            yield group

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows that one statement reads, as dicts by column."""
        with self._lend() as connection:
            return read_rows(connection.execute(statement, values))

    def close(self) -> None:
        """Close the connections. One that is in use is closed when its transaction ends."""
        checkpoint = self._checkpoint
        if checkpoint is not None and checkpoint.is_alive():
            checkpoint.join(self._busy_seconds)
        self._writer.close()
        self._close_idle()

    def _close_idle(self) -> None:
        with self._condition:
            self._generation += 1
            idle, self._idle = self._idle, []
        for opened in idle:
            opened.close()

    # -- checkpoints: copy pages from the log to the file in the background. If that does not
    # keep up, SQLite itself does it with a commit.

    def _start_checkpoint(self) -> None:
        if self._checkpoint is None or not self._checkpoint.is_alive():
            self._checkpoint = Thread(
                target=self._run_checkpoint, name="holdfast-checkpoint", daemon=True
            )
            with suppress(RuntimeError):  # no thread is available
                self._checkpoint.start()

    def _run_checkpoint(self) -> None:
        with suppress(HoldfastError), self._lend() as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            # Copy the few pages that came meanwhile, with the write lock, so that the log
            # starts anew. Give up if a reader is in the way, because writers wait for this.
            connection.execute(f"PRAGMA busy_timeout = {_RESTART_MS}")
            connection.execute("PRAGMA wal_checkpoint(RESTART)")
            connection.execute(f"PRAGMA busy_timeout = {round(self._busy_seconds * 1000)}")

    # -- connections, each used by one thread at a time

    @contextmanager
    def _lend(self) -> Iterator[RowConnection]:
        opened, generation = self._take_idle()
        broken = True
        try:
            if opened is None:
                opened = self._connect()
            yield opened
            broken = False
        except sqlite3.Error as error:
            raise explain_error(error, self.path, self._schema, self._connect) from error
        except BaseException:
            broken = False
            raise
        finally:
            self._give_back(opened, generation, broken)

    def _connect(self) -> RowConnection:
        if self._orphaned:
            raise self._unavailable("this process was forked while another thread used it")
        opened = connect(self.path, self._schema, self._durability, self._busy_seconds)
        if self._file_id not in (None, opened.file_id):
            opened.close()
            raise self._unavailable("its file was replaced: restart the processes that use it")
        if self._schema.is_bound:
            self._file_id = opened.file_id
        return opened

    def _take_idle(self) -> tuple[RowConnection | None, int]:
        """Return an idle connection, if there is one to the file that has the path now."""
        with self._condition:
            if not self._condition.wait_for(lambda: not self._forking, self._busy_seconds):
                raise self._unavailable("a fork took too long")
            self._lent += 1
            opened, generation = self._idle.pop() if self._idle else None, self._generation
        # Writes to a file that was removed or replaced would succeed, but be lost.
        if opened is not None and opened.file_id != path_check.get_file_identity(self.path):
            opened.close()
            opened = None
        return opened, generation

    def _give_back(self, opened: RowConnection | None, generation: int, broken: bool) -> None:
        if opened is not None and (broken or generation != self._generation):
            opened.close()
            opened = None
        with self._condition:
            if opened is not None:
                self._idle.append(opened)
            self._lent -= 1
            self._condition.notify_all()

    def _unavailable(self, reason: str) -> HoldfastError:
        store = f"the {self._schema.name} {str(self.path)!r}"
        return self._schema.unavailable(f"{store} is unavailable: {reason}")

    # -- forks

    def before_fork(self) -> None:
        """Wait until no connection is in use and close them all."""
        self._kept_writer = self._writer.before_fork()
        with self._condition:
            self._forking = True
            self._condition.wait_for(lambda: not self._lent, self._busy_seconds)
        self._close_idle()

    def after_fork_in_parent(self) -> None:
        """Allow connections again."""
        if self._kept_writer:
            self._writer.after_fork_in_parent()
        with self._condition:
            self._forking = False
            self._condition.notify_all()

    def after_fork_in_child(self) -> None:
        """Start without connections in the child."""
        # A thread that was using a connection does not exist in the child, so it cannot return
        # it.
        self._orphaned = self._orphaned or self._lent > 0 or not self._kept_writer
        self._reset()


class MemoryDatabase(Database):
    """The tables of a store in memory, which end with the last store that uses them.

    What protects a file is not needed here: the log, syncs, checks of the path, one connection
    per thread, and forks. All threads share one connection, one at a time.
    """

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

    def write(self, operation: Operation[T], *, durable: bool = True) -> T:
        """Run an operation in a transaction, and return its result."""
        with self.begin_write(durable=durable) as connection:
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


# Held from before a fork until after it, so that a database created meanwhile waits.
_registry = Lock()
_at_fork: list[Database] = []


@cache
def _watch_forks() -> None:
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=partial(_after_fork, Database.after_fork_in_parent),
        after_in_child=partial(_after_fork, Database.after_fork_in_child),
    )


def _before_fork() -> None:
    _registry.acquire()
    _at_fork.extend(_databases)
    for database in _at_fork:
        database.before_fork()


def _after_fork(go_on: Callable[[Database], None]) -> None:
    for database in _at_fork:
        go_on(database)
    _at_fork.clear()
    _registry.release()
