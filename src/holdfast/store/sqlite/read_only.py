"""Read a file without changing it, for doctor and for lists of queues.

A connection that may write would create the files beside the database, or empty the log when
it is closed. If there is no log, no process has the file open, and it is read as immutable,
which creates nothing. Otherwise the log is read too, and left as it is.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import StoreUnavailable
from holdfast.store.sqlite.connection import translate_error
from holdfast.store.sqlite.rows import RowConnection, read_rows


class Reader(Protocol):
    """Runs statements that read. `Database` is one, too."""

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows that one statement reads, as dicts by column."""


@dataclass(frozen=True, slots=True)
class ReadOnlyDatabase:
    """A file that is open for reading only."""

    path: Path
    connection: sqlite3.Connection

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows that one statement reads, as dicts by column."""
        return read_rows(self.connection.execute(statement, values))


def get_log_path(path: Path) -> Path:
    """Return the path of a database's log, which is beside the file that a link leads to."""
    path = path.resolve()
    return path.with_name(f"{path.name}-wal")


@contextmanager
def open_read_only(path: Path, store: str) -> Iterator[ReadOnlyDatabase]:
    """Open an existing file for reading. `store` is its kind, in the texts of errors.

    Raises ConfigError for a fault that an operator must repair, and StoreUnavailable for one
    that may pass, also if a process began to write to the file meanwhile.
    """
    path = path.absolute()
    before = _read_stamp(path)
    mode = "mode=ro" if before.has_log else "mode=ro&immutable=1"
    try:
        uri = f"{path.as_uri()}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, factory=RowConnection)) as connection:
            yield ReadOnlyDatabase(path, connection)
    except sqlite3.Error as error:
        _require_unchanged(path, store, before)
        raise (translate_error(error, path, store) or error) from error
    _require_unchanged(path, store, before)


@dataclass(frozen=True, slots=True)
class _Stamp:
    """Shows whether a file was changed."""

    has_log: bool
    size: int
    modified_ns: int


def _read_stamp(path: Path) -> _Stamp:
    status = path.stat()
    return _Stamp(get_log_path(path).exists(), status.st_size, status.st_mtime_ns)


def _require_unchanged(path: Path, store: str, before: _Stamp) -> None:
    """Raise StoreUnavailable if the file was read as immutable, but was not."""
    if not before.has_log and _read_stamp(path) != before:
        raise StoreUnavailable(
            f"the {store} {str(path)!r} is unavailable: a process wrote to it; try again"
        )
