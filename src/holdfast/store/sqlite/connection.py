"""Open a connection whose committed writes are safe, to a file with a store's tables."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from holdfast.errors import ConfigError, HoldfastError, StoreUnavailable
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.store.sqlite import path_check
from holdfast.store.sqlite.rows import RowConnection

T = TypeVar("T")
Durability = Literal["power", "process"]

SYNCHRONOUS = {"power": "FULL", "process": "NORMAL"}
_TRIES_AT_ONCE = 10  # most transactions are shorter than that
_RETRY_SECONDS = 0.0001
MAX_LOG_BYTES = 32 * 1024 * 1024  # the log is truncated to this after a burst


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables that one kind of store needs, and its name in messages."""

    name: str  # as in "job store"
    content: str  # as in "jobs"
    version: int
    tables: str
    alternative: str = "DynamoDB"  # where several machines can share the content
    application_id: int = 0  # distinguishes kinds of stores that have the same version
    page_bytes: int = 4096
    unavailable: type[HoldfastError] = StoreUnavailable  # raised for a fault that may pass
    is_bound: bool = False  # a process remembers numbers of rows, so it refuses another file
    # Table, name and type of columns, and CREATE statements of tables and indexes, that files
    # of earlier commits lack. Code that does not know them ignores them, so the version stays.
    added_columns: tuple[tuple[str, str, str], ...] = ()
    added_tables: tuple[str, ...] = ()

    def is_current(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Return whether the tables exist in this version.

        Raises ConfigError for the tables of another application or of another version. A newer
        version must rename a table that each of our statements uses. Then a process that has
        the file open is refused, too.
        """
        version, application_id = (
            _read_pragma(connection, of) for of in ("user_version", "application_id")
        )
        if not version and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return False
        if not version or application_id != self.application_id:
            raise ConfigError(
                f"{str(path)!r} is a database of another application, not a {self.name}: use "
                "another file"
            )
        if version > self.version:
            raise ConfigError(
                f"the {self.name} {str(path)!r} has schema {version}, but this version of "
                f"holdfast supports {self.version}: update holdfast"
            )
        if version < self.version:
            raise ConfigError(
                f"the {self.name} {str(path)!r} has schema {version}, which this version of "
                "holdfast no longer supports: empty it with the version that made it, or use "
                "another file"
            )
        return True

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the tables, within a transaction of the caller."""
        for statement in (*self.tables.split(";\n"), *self.added_tables):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {self.application_id}")
        connection.execute(f"PRAGMA user_version = {self.version}")

    def add_missing(self, connection: sqlite3.Connection) -> None:
        """Add the tables and columns that the file lacks."""
        for statement in self.added_tables:
            connection.execute(statement)  # takes no lock if the table exists
        for table, name, kind in self.added_columns:
            if not has_column(connection, table, name):
                connection.execute("BEGIN IMMEDIATE")
                if not has_column(connection, table, name):  # added just now
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")
                connection.execute("COMMIT")


def has_column(connection: sqlite3.Connection, table: str, name: str) -> bool:
    """Return whether a table has a column that was added to files of earlier commits."""
    return any(row[1] == name for row in connection.execute(f"PRAGMA table_info({table})"))


def _read_pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def connect(
    path: Path, schema: Schema, durability: Durability, busy_seconds: float
) -> RowConnection:
    """Open the file and create its tables if they are missing.

    Raises the schema's `unavailable` if the file is gone and ConfigError if it cannot be used.
    """
    file_id = path_check.get_file_identity(path)
    if file_id is None:
        raise schema.unavailable(f"the {schema.name} {str(path)!r} is gone")
    connection = sqlite3.connect(
        # SQLite must not create it, because other users could then read it
        f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,  # used by one thread at a time, but not always the same one
        factory=RowConnection,
    )
    connection.file_id = file_id
    try:
        _configure(connection, schema, durability)
        _prepare(connection, path, schema, busy_seconds)
    except BaseException:
        connection.close()
        raise
    return connection


def _configure(connection: sqlite3.Connection, schema: Schema, durability: Durability) -> None:
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
    if durability == "power":
        # on macOS, reaches the disk and not only its cache
        connection.execute("PRAGMA fullfsync = ON")
    connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
    # Otherwise SQLite creates a file for each statement that may have to be undone.
    connection.execute("PRAGMA temp_store = MEMORY")
    # A thread in the background does this earlier (Database), so that no writer waits for it.
    connection.execute(f"PRAGMA wal_autocheckpoint = {MAX_LOG_BYTES // schema.page_bytes}")


def _prepare(
    connection: sqlite3.Connection, path: Path, schema: Schema, busy_seconds: float
) -> None:
    if _is_current(connection, path, schema):
        schema.add_missing(connection)
        return
    # If two processes create a store at once, SQLite refuses one of them without waiting.
    retry_while_busy(lambda: _enable_wal(connection, path, schema), busy_seconds)
    _create_tables(connection, path, schema)


def _is_current(connection: sqlite3.Connection, path: Path, schema: Schema) -> bool:
    # otherwise another process could create the tables between two reads
    connection.execute("BEGIN")
    current = schema.is_current(connection, path)
    connection.execute("COMMIT")
    return current


def _enable_wal(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Enable the write-ahead log, so that readers and writers do not wait for each other.

    The file remembers the mode, and the size of its pages.
    """
    connection.execute(f"PRAGMA page_size = {schema.page_bytes}")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise ConfigError(
            f"the {schema.name} {str(path)!r} cannot be used: "
            "its file system does not support WAL"
        )


def _create_tables(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if not schema.is_current(connection, path):
        schema.create(connection)
    connection.execute("COMMIT")


def retry_while_busy(attempt: Callable[[], T], seconds: float) -> T:
    """Call again while another process writes, at most for these seconds.

    SQLite itself would wait longer from time to time, so that processes that come later are
    served first.
    """
    give_up_at = 0.0
    tries = 0
    while True:
        tries += 1
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            now = SYSTEM_CLOCK.monotonic()
            give_up_at = give_up_at or now + seconds
            if now > give_up_at:
                raise
            if tries > _TRIES_AT_ONCE:
                SYSTEM_CLOCK.sleep(_RETRY_SECONDS)


# -- errors

# An operator must repair these first. The others may be over at the next try.
_NEEDS_REPAIR = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database",
    sqlite3.SQLITE_READONLY: "it cannot be written: check the permissions of file and folder",
    sqlite3.SQLITE_PERM: "its permissions forbid it",
    sqlite3.SQLITE_AUTH: "its permissions forbid it",
}
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "other processes kept it locked for too long",
    sqlite3.SQLITE_LOCKED: "other processes kept it locked for too long",
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_IOERR: "the disk failed or is full",
    sqlite3.SQLITE_NOMEM: "memory is exhausted",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check the permissions of file and folder",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup",
    sqlite3.SQLITE_PROTOCOL: "other processes kept it locked for too long",
}


def translate_error(
    error: sqlite3.Error,
    path: Path,
    store: str = "job store",
    unavailable: type[HoldfastError] = StoreUnavailable,
) -> HoldfastError | None:
    """Return Holdfast's error for a SQLite error, or None for an unknown one.

    An unknown error is raised unchanged.
    """
    code = _get_primary_code(error)
    name = f"the {store} {str(path)!r}"
    if code in _NEEDS_REPAIR:
        return ConfigError(f"{name} cannot be used: {_NEEDS_REPAIR[code]}")
    if code in _UNAVAILABLE:
        return unavailable(f"{name} is unavailable: {_UNAVAILABLE[code]}")
    return None


def explain_error(
    error: sqlite3.Error, path: Path, schema: Schema, connect: Callable[[], RowConnection]
) -> Exception:
    """Return Holdfast's error for a SQLite error, or the error itself if it is unknown.

    An unknown error may mean that a newer version changed the tables. A new connection is then
    refused with the reason.
    """
    known = translate_error(error, path, schema.name, schema.unavailable)
    if known is not None:
        return known
    try:
        connect().close()
    except HoldfastError as refused:
        return refused
    return error


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another process kept the file locked."""
    return _get_primary_code(error) == sqlite3.SQLITE_BUSY


def is_full(error: sqlite3.Error) -> bool:
    """Return whether the disk has no space for the log or the file."""
    return _get_primary_code(error) == sqlite3.SQLITE_FULL


def _get_primary_code(error: sqlite3.Error) -> int:
    """Return the code without the detail that SQLite adds in the higher bits."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
