"""Which tables a file has, whose they are, and which version of them."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables one kind of store needs, and what to call it when people must be told."""

    name: str  # as in "job store"
    content: str  # as in "jobs"
    version: int
    tables: str
    application_id: int = 0  # of the file: two kinds of stores may have the same version

    def is_current(self, connection: sqlite3.Connection, path: Path) -> bool:
        """Whether the tables are there. Raises ConfigError for those of somebody else."""
        version, whose = (
            _read_pragma(connection, of) for of in ("user_version", "application_id")
        )
        if not version and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            return False
        if not version or whose != self.application_id:
            raise ConfigError(
                f"{str(path)!r} is a database of something else, not a {self.name}"
            )
        if version > self.version:
            raise ConfigError(
                f"the {self.name} {str(path)!r} has schema {version}, this code knows "
                f"{self.version}: update holdfast"
            )
        return version == self.version

    def create(self, connection: sqlite3.Connection) -> None:
        """Within a transaction: all of it is there afterwards, or nothing."""
        for statement in self.tables.split(";\n"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {self.application_id}")
        connection.execute(f"PRAGMA user_version = {self.version}")


def _read_pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
