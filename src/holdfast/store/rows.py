"""The port of stores on rows: tables whose rows are read and written in transactions.

SQLite, memory and DynamoDB implement it, so a store that uses only this is written once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

Row = Mapping[str, Any]  # columns and plain values: texts, numbers, None, lists, dicts
T = TypeVar("T")


class Rows(Protocol):
    """The rows of all tables, within one transaction.

    `where` maps columns to the values that a row must have. A name may end in ` <` or ` >`.
    All rows and conditions of one call name the same columns. A transaction changes a row at
    most once.
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

    def find(self, table: str, keys: Sequence[Row]) -> Sequence[Row]:
        """Return the rows with these keys, in any order and without missing ones."""

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

    def read(self, body: Callable[[Rows], T]) -> T:
        """Return what the body reads, in one state throughout if the database can do so."""

    def scan(
        self,
        table: str,
        where: Row,
        *,
        key: str,
        order_by: str = "",
        descending: bool = False,
    ) -> Iterator[Row]:
        """Yield rows one by one, however many there are and however slow the reader is.

        Each row is as it is when it is yielded, and the order is kept where that is cheap.
        `key` is a column that identifies a row.
        """

    def write(self, body: Callable[[Rows], T], *, durable: bool = True) -> T:
        """Run the body in a transaction, and return its result after the commit.

        A write that is not `durable` may be undone by a power cut until the next durable one.

        Either all of its writes happen or none. The rows that it read and changed are those
        that it changes: if another writer was first, the body runs again on the newer rows, so
        it must change nothing but rows.
        """

    def split(
        self, entries: Iterable[T], measure: Callable[[T], int] | None
    ) -> Iterator[list[T]]:
        """Yield the entries in groups, each of which one transaction can write as rows beside a
        row of another table.

        `measure` returns the bytes of an entry's row; without it, all rows are small.
        """

    def close(self) -> None:
        """Close the connections. The next transaction opens new ones."""
