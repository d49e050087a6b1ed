"""Open a connection whose committed writes are safe."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from holdfast.adapters.local.sqlite import path_check
from holdfast.adapters.local.sqlite.errors import get_primary_code
from holdfast.adapters.local.sqlite.jobs.schema import JOBS
from holdfast.adapters.local.sqlite.rows import RowConnection
from holdfast.adapters.local.sqlite.schema import Schema
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.errors import ConfigError, StoreUnavailable

T = TypeVar("T")
Durability = Literal["power", "process"]

SYNCHRONOUS = {"power": "FULL", "process": "NORMAL"}
_RETRY_SECONDS = 0.01
_MAX_WAL_BYTES = 16 * 1024 * 1024  # the log is truncated to this after a burst


@dataclass(frozen=True, slots=True)
class OpenConnection:
    """A connection, and the identity of the file it opened."""

    connection: RowConnection
    file_id: tuple[int, int]  # the file's identity, even if its path names another file later


def connect(
    path: Path, schema: Schema, durability: Durability, busy_seconds: float
) -> OpenConnection:
    """Open the file and create its tables if they are missing.

    Raises StoreUnavailable if the file is gone and ConfigError if it cannot be used.
    """
    file_id = path_check.get_file_identity(path)
    if file_id is None:
        raise StoreUnavailable(f"the {schema.name} {str(path)!r} is gone")
    connection = sqlite3.connect(
        # SQLite must not create it, because other users could then read it
        f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,  # used by one thread at a time, but not always the same one
        factory=RowConnection,
    )
    try:
        _configure(connection, durability)
        _prepare(connection, path, schema, busy_seconds)
    except BaseException:
        connection.close()
        raise
    return OpenConnection(connection, file_id)


def _configure(connection: sqlite3.Connection, durability: Durability) -> None:
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
    if durability == "power":
        # on macOS, reaches the disk and not only its cache
        connection.execute("PRAGMA fullfsync = ON")
    connection.execute(f"PRAGMA journal_size_limit = {_MAX_WAL_BYTES}")


def _prepare(
    connection: sqlite3.Connection, path: Path, schema: Schema, busy_seconds: float
) -> None:
    if _is_current(connection, path, schema):
        return
    # If two processes create a store at once, SQLite refuses one of them without waiting.
    _retry_while_busy(lambda: _enable_wal(connection, path, schema), busy_seconds)
    _create_tables(connection, path, schema)


def _is_current(connection: sqlite3.Connection, path: Path, schema: Schema = JOBS) -> bool:
    # otherwise another process could create the tables between two reads
    connection.execute("BEGIN")
    current = schema.is_current(connection, path)
    connection.execute("COMMIT")
    return current


def _enable_wal(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Enable the write-ahead log, so that readers and writers do not wait for each other.

    The file remembers the mode.
    """
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


def _retry_while_busy(attempt: Callable[[], T], seconds: float) -> T:
    give_up_at = SYSTEM_CLOCK.monotonic() + seconds
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            is_busy = get_primary_code(error) == sqlite3.SQLITE_BUSY
            if not is_busy or SYSTEM_CLOCK.monotonic() > give_up_at:
                raise
            SYSTEM_CLOCK.sleep(_RETRY_SECONDS)
