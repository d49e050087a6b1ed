"""The port of stores on rows: tables whose rows are read and written in transactions.

SQLite and memory implement it, so a store that uses only this is written once for both.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

Row = Mapping[str, Any]  # columns and plain values: texts, numbers, None, lists, dicts


class Rows(Protocol):
    """The rows of all tables, within one transaction.

    `where` maps columns to the values that a row must have. A name may end in ` <` or ` >`.
    All rows and conditions of one call name the same columns.
    """

    def select(
        self,
        table: str,
        where: Row,
        *,
        columns: str = "*",
        order_by: str = "",
        descending: bool = False,
        limit: int = -1,
    ) -> Sequence[Row]:
        """Return the rows, all of them if the limit is negative."""

    def insert(self, table: str, rows: Sequence[Row]) -> int:
        """Add the rows whose keys are new, and return how many were added."""

    def replace(self, table: str, rows: Sequence[Row]) -> None:
        """Add the rows, each in place of the one with its key."""

    def update(self, table: str, updates: Sequence[tuple[Row, Row]]) -> int:
        """Make each change to the rows of its condition, and return how many changed."""

    def delete(self, table: str, wheres: Sequence[Row]) -> None:
        """Delete the rows of each condition."""


class RowDatabase(Protocol):
    """The tables of one store, for all of its threads."""

    def begin_read(self) -> AbstractContextManager[Rows]:
        """Begin a transaction that sees one state of the rows throughout."""

    def begin_write(self, *, durable: bool = True) -> AbstractContextManager[Rows]:
        """Begin a transaction as the only writer. Either all of its writes happen or none.

        A write that is not `durable` reaches the disk with the next durable one. A power cut in
        between undoes it as if it had not been requested.
        """

    def close(self) -> None:
        """Close the connections. The next transaction opens new ones."""
