"""The connections of a store, to watch what it does."""

from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection

from holdfast.store.sqlite.database import Database


@contextmanager
def use_connections(database: Database) -> Iterator[tuple[Connection, Connection]]:
    """Return the connections that the next read and the next write will use."""
    with database.begin_read() as reading, database.begin_write() as writing:
        yield reading, writing
