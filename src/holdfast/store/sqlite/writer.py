"""The one connection through which the threads of a process write to a file.

A thread that waits for its turn usually finds that the thread before it ran its operation, too,
in the same transaction. So a commit, which waits for the disk if the file must survive a power
cut, is shared by all operations that came meanwhile.
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock, get_ident
from typing import Any, Generic, TypeVar

from holdfast.errors import HoldfastError
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.store.sqlite.connection import (
    Schema,
    explain_error,
    is_busy,
    is_full,
    retry_while_busy,
)
from holdfast.store.sqlite.path_check import get_file_identity
from holdfast.store.sqlite.rows import RowConnection

T = TypeVar("T")
Operation = Callable[[RowConnection], T]
Executed = tuple[int, list[Any]]  # the number of rows that were changed, and the rows returned

_MAX_CALLS = 100  # in one transaction, so that other processes are not kept waiting
_RECENT_SECONDS = 0.02
_PAGES_PER_COMMIT = 2
_CHANGES_PER_PAGE = 4
_NO_ROWS: list[Any] = []
_read_clock = SYSTEM_CLOCK.monotonic


class _Call(Generic[T]):
    """The operation of one thread, and what became of it."""

    __slots__ = ("error", "is_done", "is_statement", "operation", "result")

    def __init__(self, operation: Operation[T], is_statement: bool) -> None:
        self.operation = operation
        self.is_statement = is_statement
        self.is_done = False
        self.result: Any = None
        self.error: Exception | None = None


class Writer:
    """Runs the operations of all threads, as many as wait in one transaction.

    `connect` opens a connection. `start_checkpoint` is called when the log has got about
    `checkpoint_pages` more. A thread waits up to `busy_seconds` for the others of its process,
    and as long for other processes. An operation may run again after a failure that undid it,
    so it must change nothing but the file.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        connect: Callable[[], RowConnection],
        busy_seconds: float,
        checkpoint_pages: int,
        start_checkpoint: Callable[[], None],
    ) -> None:
        self._path, self._schema = path, schema
        self._connect = connect
        self._busy_seconds = busy_seconds
        self._checkpoint_pages = checkpoint_pages
        self._start_checkpoint = start_checkpoint
        # Ctrl-C may come just after the lock was taken. Only its owner can release an RLock, so
        # a thread may try that even if it does not know whether it took the lock.
        self._turn = RLock()
        self._transaction_of: int | None = None  # the thread that is in `begin`
        self._waiting: deque[_Call[Any]] = deque()
        self._connection: RowConnection | None = None
        self._check_at = 0.0
        self._log_pages = 0  # since the last checkpoint, estimated
        self._must_close = False

    # -- operations of several threads in one transaction

    def run(self, operation: Operation[T]) -> T:
        """Run the operation in a transaction, and return its result after the commit."""
        return self._run(_Call(operation, is_statement=False))

    def execute(self, statement: str, values: Sequence[Any]) -> Executed:
        """Execute one statement, and return what it changed and its rows after the commit."""
        try:
            # The usual path of a push, a claim and an ack: as few calls as possible.
            if not self._waiting and self._turn.acquire(False):
                connection = self._connection
                if connection is None or _read_clock() >= self._check_at:
                    connection = self._open()
                try:
                    cursor = connection.execute(statement, values)
                    rows = cursor.fetchall() if cursor.description else _NO_ROWS
                    executed = cursor.rowcount, rows
                except sqlite3.OperationalError as error:
                    if not is_busy(error):
                        raise
                    executed = self._retry(connection, statement, values)
                self._log_pages += _PAGES_PER_COMMIT
                if self._log_pages >= self._checkpoint_pages:
                    self._request_checkpoint()
                if self._must_close:
                    self._close_if_requested()
                return executed
        except sqlite3.Error as error:
            self._close_connection()
            raise self._translate(error) from error
        finally:
            # Ctrl-C is noticed after a call, so nothing may be called before this.
            try:  # noqa: SIM105 - suppress() is a call
                self._turn.release()
            except RuntimeError:
                pass  # it is the turn of another thread
        return self._run(_Call(lambda c: _execute(c, statement, values), is_statement=True))

    def _run(self, call: "_Call[T]") -> T:
        try:
            self._waiting.append(call)
            self._wait_for_turn(call)
            while not call.is_done:
                self._run_waiting(call)
            self._close_if_requested()
        except BaseException:
            self._withdraw(call)
            raise
        finally:
            try:  # noqa: SIM105 - suppress() is a call
                self._turn.release()
            except RuntimeError:
                pass  # it never got its turn
        if call.error is not None:
            raise self._translate(call.error)
        result: T = call.result
        return result

    def _wait_for_turn(self, call: _Call[Any]) -> None:
        if self._turn.acquire(timeout=self._busy_seconds):
            return
        # If it cannot be withdrawn, another thread is running it and will soon be done.
        if self._withdraw(call) or not self._turn.acquire(timeout=self._busy_seconds):
            raise self._too_slow()

    def _withdraw(self, call: _Call[Any]) -> bool:
        try:
            self._waiting.remove(call)
        except ValueError:
            return False
        return True

    def _run_waiting(self, own: _Call[Any]) -> None:
        calls: list[_Call[Any]] = []
        try:
            while self._waiting and len(calls) < _MAX_CALLS:
                calls.append(self._waiting.popleft())
            if own not in calls and own not in self._waiting:
                calls.append(own)  # a thread that was interrupted had taken it
            connection = self._open(recently_checked=True)
            changes = connection.total_changes
            self._run_together(connection, calls)
            self._count_pages(connection.total_changes - changes)
        except Exception as error:
            self._must_close = self._must_close or isinstance(error, sqlite3.Error)
            for call in calls:
                if not call.is_done:
                    call.error, call.is_done = error, True
        except BaseException:  # Ctrl-C in this thread: the others run their calls themselves
            others = [call for call in calls if not call.is_done and call is not own]
            self._waiting.extendleft(reversed(others))
            raise

    def _run_together(self, connection: RowConnection, calls: list[_Call[Any]]) -> None:
        begun = False
        try:
            self._begin(connection)
            begun = True
            for call in calls:
                _run_call(connection, call, is_alone=len(calls) == 1)
            connection.execute("COMMIT")
            _finish(calls)
        except BaseException as error:
            if connection.in_transaction:
                _roll_back(connection)
            elif begun and not isinstance(error, Exception):
                _finish(calls)  # the signal came after the commit
            raise

    # -- one transaction

    @contextmanager
    def begin(self, *, relax_sync: str | None = None) -> Iterator[RowConnection]:
        """Begin a transaction as the only writer, with another `synchronous` if given."""
        try:
            if not self._turn.acquire(timeout=self._busy_seconds):
                raise self._too_slow()
            self._transaction_of = get_ident()
            connection = self._open()
            changes = connection.total_changes
            with _relax_sync(connection, relax_sync):
                self._begin(connection)
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    _roll_back(connection)
                    raise
            self._count_pages(connection.total_changes - changes)
        except sqlite3.Error as error:
            self._must_close = True
            raise self._translate(error) from error
        finally:
            try:
                if self._transaction_of == get_ident():
                    self._transaction_of = None
                    self._close_if_requested()
            finally:
                try:  # noqa: SIM105 - suppress() is a call
                    self._turn.release()
                except RuntimeError:
                    pass  # it never got its turn

    # -- the connection

    def close(self) -> None:
        """Close the connection, now or when the turn of another thread ends."""
        self._must_close = True
        if self._transaction_of != get_ident() and self._turn.acquire(blocking=False):
            self._close_if_requested()
            self._turn.release()

    def before_fork(self) -> bool:
        """Wait for the turn of another thread, close the connection, and keep all others out.

        Returns False if it took too long.
        """
        if not self._turn.acquire(timeout=self._busy_seconds):
            return False
        self._close_connection()
        return True

    def after_fork_in_parent(self) -> None:
        """Let the other threads go on."""
        self._turn.release()

    def _open(self, *, recently_checked: bool = False) -> RowConnection:
        """Return the connection, which is opened if there is none.

        Writes to a file that was removed or replaced would succeed, but be lost. So the path is
        checked, and with `recently_checked` only if the last check is not recent.
        """
        connection = self._connection
        if connection is not None:
            now = _read_clock()
            if recently_checked and now < self._check_at:
                return connection
            self._check_at = now + _RECENT_SECONDS
            if connection.file_id == get_file_identity(self._path):
                return connection
            self._close_connection()
        self._connection = connection = self._connect()
        connection.execute("PRAGMA busy_timeout = 0")  # _retry waits
        return connection

    def _count_pages(self, changes: int) -> None:
        """Estimate how many pages a commit wrote to the log: rows of a batch share pages."""
        self._log_pages += _PAGES_PER_COMMIT + changes // _CHANGES_PER_PAGE
        if self._log_pages >= self._checkpoint_pages:
            self._request_checkpoint()

    def _request_checkpoint(self) -> None:
        self._log_pages = 0
        self._start_checkpoint()

    def _close_if_requested(self) -> None:
        if self._must_close:
            self._must_close = False
            self._close_connection()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _begin(self, connection: RowConnection) -> None:
        # IMMEDIATE, because a transaction that reads first and requests the write lock later is
        # refused at once if another writer was faster, however long it would wait.
        self._retry(connection, "BEGIN IMMEDIATE")

    def _retry(
        self, connection: RowConnection, statement: str, values: Sequence[Any] = ()
    ) -> Executed:
        """Execute a statement, again and again while another process writes."""
        return retry_while_busy(
            lambda: _execute(connection, statement, values), self._busy_seconds
        )

    def _translate(self, error: Exception) -> Exception:
        """Return Holdfast's error for one of SQLite, and any other unchanged."""
        if not isinstance(error, sqlite3.Error):
            return error
        if is_full(error):  # a log that starts anew is written in the space that it has
            self._request_checkpoint()
        return explain_error(error, self._path, self._schema, self._connect)

    def _too_slow(self) -> HoldfastError:
        store = f"the {self._schema.name} {str(self._path)!r}"
        return self._schema.unavailable(
            f"{store} is unavailable: its other writers took too long"
        )


def _execute(connection: RowConnection, statement: str, values: Sequence[Any]) -> Executed:
    cursor = connection.execute(statement, values)
    rows = cursor.fetchall()  # before the count, because this ends the statement
    return cursor.rowcount, rows


def _run_call(connection: RowConnection, call: _Call[Any], *, is_alone: bool) -> None:
    """Run one operation. Its failure undoes its own writes, and not those of the others."""
    call.error = None  # of an earlier try
    if is_alone:
        call.result = call.operation(connection)
        return
    if not call.is_statement:  # one statement undoes itself
        connection.execute("SAVEPOINT operation")
    try:
        call.result = call.operation(connection)
    except Exception as error:
        if not connection.in_transaction:
            raise  # SQLite undid everything, for example because the disk is full
        call.error = error
        if not call.is_statement:
            connection.execute("ROLLBACK TO operation")
    if not call.is_statement:
        connection.execute("RELEASE operation")


def _finish(calls: list[_Call[Any]]) -> None:
    for call in calls:
        call.is_done = True


def _roll_back(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):  # a full disk may have rolled it back already
        connection.execute("ROLLBACK")


@contextmanager
def _relax_sync(connection: sqlite3.Connection, synchronous: str | None) -> Iterator[None]:
    if synchronous is None:
        yield
        return
    normal = connection.execute("PRAGMA synchronous").fetchone()[0]
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA synchronous = {normal}")
