"""The tables of a store's file, with their owner and version."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables that one kind of store needs, and its name in messages."""

    name: str  # as in "job store"
    content: str  # as in "jobs"
    version: int
    tables: str
    application_id: int = 0  # distinguishes kinds of stores that have the same version

    def is_current(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Return whether the tables exist in this version.

        Raises ConfigError for the tables of another application or a newer version.
        """
        version, application_id = (
            _read_pragma(connection, of) for of in ("user_version", "application_id")
        )
        if not version and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return False
        if not version or application_id != self.application_id:
            raise ConfigError(
                f"{str(path)!r} is a database of another application, not a {self.name}"
            )
        if version > self.version:
            raise ConfigError(
                f"the {self.name} {str(path)!r} has schema {version}, but this version of "
                f"holdfast supports {self.version}: update holdfast"
            )
        return version == self.version

    def create(self, connection: sqlite3.Connection) -> None:
        """Create the tables, within a transaction of the caller."""
        for statement in self.tables.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {self.application_id}")
        connection.execute(f"PRAGMA user_version = {self.version}")


def _read_pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
