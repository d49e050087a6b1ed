"""Rows in memory, for the stores that tests use."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import count
from operator import eq, gt, lt
from threading import Lock
from typing import Any

from holdfast.core.rows import Row

_Key = tuple[Any, ...]
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {"": eq, "<": lt, ">": gt}


class MemoryRows:
    """Tables as dicts. Several stores may share them.

    `keys` are the columns of each table's key. The rows of a table that is in `numbered` get a
    number in the column named there.
    """

    def __init__(
        self, keys: Mapping[str, tuple[str, ...]], numbered: Mapping[str, str]
    ) -> None:
        self._keys, self._numbered = keys, numbered
        self._numbers = count(1)
        self._lock = Lock()
        self._tables: dict[str, dict[_Key, Row]] = {name: {} for name in keys}
        self._undo: list[tuple[str, _Key, Row | None]] = []  # the rows before each write

    @contextmanager
    def begin_write(self, *, durable: bool = True) -> Iterator["MemoryRows"]:
        """Begin a transaction. If it raises, none of its writes has happened."""
        with self._lock:
            try:
                yield self
            except BaseException:
                for table, key, before in reversed(self._undo):
                    self._set(table, key, before)
                raise
            finally:
                self._undo.clear()

    begin_read = begin_write

    def close(self) -> None:
        """Do nothing."""

    def _write(self, table: str, key: _Key, row: Row | None) -> None:
        self._undo.append((table, key, self._tables[table].get(key)))
        self._set(table, key, row)

    def _set(self, table: str, key: _Key, row: Row | None) -> None:
        if row is None:
            self._tables[table].pop(key, None)
        else:
            self._tables[table][key] = row

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
        """Return the rows, complete ones whatever `columns` names."""
        rows = [self._tables[table][key] for key in self._find_keys(table, where)]
        if order_by:
            rows.sort(key=lambda row: row[order_by], reverse=descending)
        return rows if limit < 0 else rows[:limit]

    def insert(self, table: str, rows: Sequence[Row]) -> int:
        """Add the rows whose keys are new, and return how many were added."""
        before = len(self._tables[table])
        for row in rows:
            if self._get_key(table, row) not in self._tables[table]:
                self.replace(table, [row])
        return len(self._tables[table]) - before

    def replace(self, table: str, rows: Sequence[Row]) -> None:
        """Add the rows, each in place of the one with its key."""
        for row in rows:
            number = self._numbered.get(table)
            new = {**row, number: next(self._numbers)} if number else row
            self._write(table, self._get_key(table, row), deepcopy(new))

    def update(self, table: str, updates: Sequence[tuple[Row, Row]]) -> int:
        """Make each change to the rows of its condition, and return how many changed."""
        changed = 0
        for changes, where in updates:
            for key in self._find_keys(table, where):
                self._write(table, key, {**self._tables[table][key], **changes})
                changed += 1
        return changed

    def delete(self, table: str, wheres: Sequence[Row]) -> None:
        """Delete the rows of each condition."""
        for where in wheres:
            for key in self._find_keys(table, where):
                self._write(table, key, None)

    def _get_key(self, table: str, row: Row) -> _Key:
        return tuple(row[name] for name in self._keys[table])

    def _find_keys(self, table: str, where: Row) -> list[_Key]:
        rows = self._tables[table]
        keys: Iterable[_Key] = rows
        if where.keys() >= set(self._keys[table]):
            key = self._get_key(table, where)
            keys = [key] if key in rows else []
        return [key for key in keys if _matches(rows[key], where)]


def _matches(row: Row, where: Row) -> bool:
    for name, value in where.items():
        column, _, comparison = name.partition(" ")
        if not _COMPARISONS[comparison](row[column], value):
            return False
    return True
