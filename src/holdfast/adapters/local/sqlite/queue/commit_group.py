"""Group commit: threads that write at the same time share one transaction."""

from collections import deque
from collections.abc import Callable
from sqlite3 import Connection
from threading import Lock
from typing import Any, Generic, TypeVar

from holdfast.adapters.local.sqlite.database import Database

T = TypeVar("T")
Operation = Callable[[Connection], T]
_MAX_OPERATIONS = 100  # in one transaction, so that other processes are not kept waiting


class _Call(Generic[T]):
    """The call of one thread: its operation, and what became of it."""

    __slots__ = ("error", "is_done", "operation", "result")

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None


class CommitGroup:
    """Runs the operations of all threads, as many as wait in one transaction.

    A thread that waits for its turn usually finds that the thread before it has committed its
    operation, too. So a commit, which waits for the disk if the queue must survive a power cut,
    is shared by all that came meanwhile.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Call[Any]] = deque()
        self._turn = Lock()

    def run(self, operation: Operation[T]) -> T:
        """Run the operation in a transaction, and return its result after the commit."""
        call = _Call(operation)
        self._waiting.append(call)
        with self._turn:
            while not call.is_done:
                self._run_waiting()
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def _run_waiting(self) -> None:
        calls: list[_Call[Any]] = []
        while self._waiting and len(calls) < _MAX_OPERATIONS:
            calls.append(self._waiting.popleft())
        try:
            with self._database.begin_write() as connection:
                for call in calls:
                    _run(call, connection, is_alone=len(calls) == 1)
        except BaseException as error:
            for call in calls:
                call.error = error
        for call in calls:
            call.is_done = True


def _run(call: _Call[Any], connection: Connection, *, is_alone: bool) -> None:
    """Run one operation. Its failure undoes its own writes, and not those of the others."""
    if is_alone:
        call.result = call.operation(connection)
        return
    connection.execute("SAVEPOINT operation")
    try:
        call.result = call.operation(connection)
    except Exception as error:
        call.error = error
        connection.execute("ROLLBACK TO operation")
    connection.execute("RELEASE operation")
