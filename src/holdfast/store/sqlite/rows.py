"""Rows as dicts by column, within one transaction."""

import json
from collections.abc import Iterable, Sequence
from functools import cache, partial
from sqlite3 import Connection, Cursor
from typing import Any

from holdfast.store.rows import Row

# The columns of each table that hold JSON texts.
_JSON = {
    "conversations": ("channel_config", "ai_config", "messages", "outbox"),
    "messages": ("details",),
    "stage": ("media", "unreadable"),
    "parked": ("staged", "outbox"),
    "jobs": ("metadata",),
}
# They contain rows of other software, which are stored even if JSON does not have their values.
_FOREIGN = {"unreadable", "staged"}


# Other programs may have stored bytes that are not UTF-8. Without this, one such text would
# make every statement fail that reads it, with an error that quotes it.
decode_text = partial(str, encoding="utf-8", errors="replace")


class RowConnection(Connection):
    """A connection that reads and writes rows as dicts, within one transaction.

    `where` maps columns to the values that a row must have. A name may end in ` <` or ` >`.
    All rows and conditions of one call name the same columns. Names of tables and columns are
    our own.
    """

    file_id: tuple[int, int]  # the file's identity, even if its path names another file later

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.text_factory = decode_text

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
        order = f" ORDER BY {order_by}{' DESC' if descending else ''}" if order_by else ""
        statement = f"SELECT {columns} FROM {table}{_format_where(*where)}{order} LIMIT ?"  # noqa: S608 - our own names
        rows = read_rows(self.execute(statement, (*where.values(), limit)))
        for name in _find_json_names(table, rows[0]) if rows else ():
            for row in rows:
                row[name] = _parse(row[name])
        return rows

    def find(self, table: str, keys: Sequence[Row]) -> Sequence[Row]:
        """Return the rows with these keys."""
        return [row for key in keys for row in self.select(table, key)]

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
        json_names = _find_json_names(table, rows[0])
        encoded = [tuple(_encode(row, json_names)) for row in rows]
        return self.executemany(statement, encoded).rowcount

    def update(self, table: str, updates: Sequence[tuple[Row, Row]]) -> int:
        """Make each change to the rows of its condition, and return how many changed."""
        if not updates:
            return 0
        changes, where = updates[0]
        columns = " = ?, ".join(changes)
        statement = f"UPDATE {table} SET {columns} = ?{_format_where(*where)}"  # noqa: S608 - our own names
        json_names = _find_json_names(table, changes)
        values = [
            (*_encode(changes, json_names), *where.values()) for changes, where in updates
        ]
        return self.executemany(statement, values).rowcount

    def delete(self, table: str, wheres: Sequence[Row]) -> None:
        """Delete the rows of each condition."""
        if wheres:
            statement = f"DELETE FROM {table}{_format_where(*wheres[0])}"  # noqa: S608 - our own names
            self.executemany(statement, [tuple(where.values()) for where in wheres])


def read_rows(cursor: Cursor) -> list[dict[str, Any]]:
    """Return the rows of a cursor as dicts by column."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, values, strict=True)) for values in cursor]


def cast_columns(kind: str, *names: str) -> str:
    """Return columns for a SELECT whose values have this type, whatever is stored in them."""
    return ", ".join(f"CAST({name} AS {kind}) AS {name.rpartition('.')[2]}" for name in names)


@cache
def _format_where(*names: str) -> str:
    """Return the condition that the columns have, or are below or above, the given values."""
    terms = [f"{name} ?" if " " in name else f"{name} = ?" for name in names]
    return f" WHERE {' AND '.join(terms)}" if terms else ""


def _find_json_names(table: str, row: Row) -> list[str]:
    return [name for name in _JSON.get(table, ()) if name in row]


def _encode(row: Row, json_names: list[str]) -> Iterable[Any]:
    """Return the row's values, with JSON texts in these columns."""
    if json_names:
        row = {**row, **{name: _dump(name, row[name]) for name in json_names}}
    return row.values()


def _dump(name: str, value: Any) -> str | None:
    if value is None:
        return None
    return json.dumps(value, default=str if name in _FOREIGN else None)


def _parse(text: Any) -> Any:
    """Parse a JSON text. A damaged one stays as it is, and no reader accepts it."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text
