"""Rows as dicts by column, within one transaction."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from sqlite3 import Connection, Cursor
from typing import Any

Row = Mapping[str, Any]

# Columns that hold JSON texts, and how a value that JSON does not have is written. A row of
# other software may contain anything, and is stored nevertheless.
_JSON: dict[str, Callable[[Any], Any] | None] = {
    "channel_config": None,
    "ai_config": None,
    "messages": None,
    "outbox": None,
    "details": None,
    "media": None,
    "unreadable": str,
    "staged": str,
}


class RowConnection(Connection):
    """A connection that reads and writes rows. Names of tables and columns are our own.

    `where` maps columns to the values that a row must have. A name may end in ` <` or ` >`.
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
    ) -> list[Row]:
        """Return the rows, all of them if the limit is negative."""
        order = f" ORDER BY {order_by}{' DESC' if descending else ''}" if order_by else ""
        statement = f"SELECT {columns} FROM {table}{_format_where(*where)}{order} LIMIT ?"  # noqa: S608 - our own names
        rows = read_rows(self.execute(statement, (*where.values(), limit)))
        return rows if columns != "*" else [_decode(row) for row in rows]

    def insert(self, table: str, rows: Sequence[Row]) -> int:
        """Add the rows whose keys are new, and return how many were added."""
        return self._insert("INSERT INTO", table, rows, " ON CONFLICT DO NOTHING")

    def replace(self, table: str, rows: Sequence[Row]) -> None:
        """Add the rows, each in place of the one with its key."""
        self._insert("INSERT OR REPLACE INTO", table, rows)

    def _insert(self, verb: str, table: str, rows: Sequence[Row], otherwise: str = "") -> int:
        if not rows:
            return 0
        names = ", ".join(rows[0])
        values = ", ".join("?" * len(rows[0]))
        statement = f"{verb} {table} ({names}) VALUES ({values}){otherwise}"
        return self.executemany(statement, [_encode(row) for row in rows]).rowcount

    def update(self, table: str, changes: Row, where: Row) -> int:
        """Change the rows, and return how many there were."""
        columns = " = ?, ".join(changes)
        statement = f"UPDATE {table} SET {columns} = ?{_format_where(*where)}"  # noqa: S608 - our own names
        return self.execute(statement, (*_encode(changes), *where.values())).rowcount

    def delete(self, table: str, wheres: Sequence[Row]) -> None:
        """Delete the rows of each of these conditions, which name the same columns."""
        if wheres:
            statement = f"DELETE FROM {table}{_format_where(*wheres[0])}"  # noqa: S608 - our own names
            self.executemany(statement, [tuple(where.values()) for where in wheres])


def read_rows(cursor: Cursor) -> list[Row]:
    """Return the rows of a cursor as dicts by column."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, values, strict=True)) for values in cursor]


@cache
def _format_where(*names: str) -> str:
    """Return the condition that the columns have, or are below or above, the given values."""
    terms = [f"{name} ?" if " " in name else f"{name} = ?" for name in names]
    return f" WHERE {' AND '.join(terms)}" if terms else ""


def _encode(row: Row) -> list[Any]:
    return [
        json.dumps(value, default=_JSON[name]) if name in _JSON and value is not None else value
        for name, value in row.items()
    ]


def _decode(row: Row) -> dict[str, Any]:
    return {name: _parse(value) if name in _JSON else value for name, value in row.items()}


def _parse(text: Any) -> Any:
    """Parse a JSON text. A damaged one stays as it is, and no reader accepts it."""
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text
