"""One connection, opened so that what is committed is safe."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from holdfast.adapters.local.sqlite import path_check
from holdfast.adapters.local.sqlite.errors import get_primary_code
from holdfast.adapters.local.sqlite.jobs.schema import JOBS
from holdfast.adapters.local.sqlite.schema import Schema
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.errors import ConfigError, StoreUnavailable

T = TypeVar("T")
Durability = Literal["power", "process"]

SYNCHRONOUS = {"power": "FULL", "process": "NORMAL"}
_RETRY_SECONDS = 0.01
_MAX_WAL_BYTES = 16 * 1024 * 1024  # what the log is cut back to after a burst


@dataclass(frozen=True, slots=True)
class OpenConnection:
    connection: sqlite3.Connection
    file_id: tuple[int, int]  # which one it is, whatever its name leads to later


def connect(
    path: Path, schema: Schema, durability: Durability, busy_seconds: float
) -> OpenConnection:
    file = path_check.get_file_identity(path)
    if file is None:
        raise StoreUnavailable(f"the {schema.name} {str(path)!r} is gone")
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",  # never made by SQLite: others could read it then
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,  # one thread at a time, but not always the same
    )
    try:
        _configure(connection, durability)
        _prepare(connection, path, schema, busy_seconds)
    except BaseException:
        connection.close()
        raise
    return OpenConnection(connection, file)


def _configure(connection: sqlite3.Connection, durability: Durability) -> None:
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
    if durability == "power":
        connection.execute("PRAGMA fullfsync = ON")  # macOS: to the disk, not to its cache
    connection.execute(f"PRAGMA journal_size_limit = {_MAX_WAL_BYTES}")


def _prepare(
    connection: sqlite3.Connection, path: Path, schema: Schema, busy_seconds: float
) -> None:
    if _is_current(connection, path, schema):
        return
    # Of two who make a store at once one is turned away without patience.
    _retry_while_busy(lambda: _enable_wal(connection, path, schema), busy_seconds)
    _create_tables(connection, path, schema)


def _is_current(connection: sqlite3.Connection, path: Path, schema: Schema = JOBS) -> bool:
    connection.execute("BEGIN")  # or another one makes the tables between two looks
    current = schema.is_current(connection, path)
    connection.execute("COMMIT")
    return current


def _enable_wal(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """Readers do not wait for writers, nor writers for readers. The file remembers it."""
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise ConfigError(
            f"the {schema.name} {str(path)!r} cannot be used: no WAL is possible there"
        )


def _create_tables(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    connection.execute("BEGIN IMMEDIATE")
    if not schema.is_current(connection, path):
        schema.create(connection)
    connection.execute("COMMIT")


def _retry_while_busy(attempt: Callable[[], T], seconds: float) -> T:
    until = SYSTEM_CLOCK.monotonic() + seconds
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            busy = get_primary_code(error) == sqlite3.SQLITE_BUSY
            if not busy or SYSTEM_CLOCK.monotonic() > until:
                raise
            SYSTEM_CLOCK.sleep(_RETRY_SECONDS)
