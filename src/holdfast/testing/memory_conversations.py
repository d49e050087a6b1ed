"""Conversations in memory: the promises of the port, on plain values.

Contract tests compare other stores with it, and simulations run conversations on it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import count
from operator import eq, gt, lt
from threading import RLock
from typing import Any

from holdfast.conversations.model import ConversationKey, WaitingConversation
from holdfast.conversations.row_store import RowConversationStore
from holdfast.conversations.rows import Row
from holdfast.core.clock import SYSTEM_CLOCK, Clock

_KEYS = {
    "conversations": ("conversation_id", "primary_channel"),
    "messages": ("conversation_no", "seq"),
    "stage": ("conversation_id", "message_sid"),
    "windows": ("conversation_id",),
    "processed": ("conversation_id", "primary_channel", "message_sid"),
    "parked": ("parked_id",),
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {"": eq, "<": lt, ">": gt}


class ConversationMemory:
    """The stored rows. Several MemoryConversations may share one."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.tables: dict[str, dict[tuple[Any, ...], Row]] = {name: {} for name in _KEYS}
        self._numbers = count(1)  # of conversations

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
        """Return the rows, complete ones whatever `columns` names."""
        rows = [self.tables[table][key] for key in self._find_keys(table, where)]
        if order_by:
            rows.sort(key=lambda row: row[order_by], reverse=descending)
        return rows if limit < 0 else rows[:limit]

    def _find_keys(self, table: str, where: Row) -> list[tuple[Any, ...]]:
        rows = self.tables[table]
        keys: Iterable[tuple[Any, ...]] = rows
        if where.keys() >= set(_KEYS[table]):
            key = _get_key(table, where)
            keys = [key] if key in rows else []
        return [key for key in keys if _matches(rows[key], where)]

    def insert(self, table: str, rows: Sequence[Row]) -> int:
        """Add the rows whose keys are new, and return how many were added."""
        added = [row for row in rows if _get_key(table, row) not in self.tables[table]]
        self.replace(table, added)
        return len(added)

    def replace(self, table: str, rows: Sequence[Row]) -> None:
        """Add the rows, each in place of the one with its key."""
        for row in rows:
            number = (
                {"conversation_no": next(self._numbers)} if table == "conversations" else {}
            )
            self.tables[table][_get_key(table, row)] = deepcopy({**number, **row})

    def update(self, table: str, changes: Row, where: Row) -> int:
        """Change the rows, and return how many there were."""
        keys = self._find_keys(table, where)
        for key in keys:
            self.tables[table][key] = {**self.tables[table][key], **changes}
        return len(keys)

    def delete(self, table: str, wheres: Sequence[Row]) -> None:
        """Delete the rows of each of these conditions."""
        for where in wheres:
            for key in self._find_keys(table, where):
                del self.tables[table][key]


def _get_key(table: str, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEYS[table])


def _matches(row: Row, where: Row) -> bool:
    for name, value in where.items():
        column, _, comparison = name.partition(" ")
        if not _COMPARISONS[comparison](row[column], value):
            return False
    return True


class MemoryConversations(RowConversationStore):
    """A store that exists as long as its memory. It is safe for threads.

    Expired rows stay until `forget_expired` is called, like in a table that removes them at
    any later time.
    """

    def __init__(
        self, memory: ConversationMemory | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(clock)
        self._memory = ConversationMemory() if memory is None else memory

    def forget_expired(self, now: float) -> None:
        """Remove every expired row, as a table does sooner or later."""
        with self._memory.lock:
            for table in ("processed", "stage", "windows"):
                self._memory.delete(table, [{"expires_at <": now}])

    @contextmanager
    def _begin_read(self) -> Iterator[ConversationMemory]:
        with self._memory.lock:
            yield self._memory

    @contextmanager
    def _begin_write(self, *, durable: bool = True) -> Iterator[ConversationMemory]:
        with self._memory.lock:
            yield self._memory

    def _delete_expired(self, rows: ConversationMemory, now: float) -> None:
        pass

    def waiting(self) -> Iterator[WaitingConversation]:
        """Return every conversation that has staged rows."""
        times: defaultdict[ConversationKey, list[float]] = defaultdict(list)
        with self._memory.lock:
            for row in self._memory.select("stage", {}):
                key = ConversationKey(row["primary_channel"], row["conversation_id"])
                times[key].append(row["staged_at"])
        return iter([WaitingConversation(key, len(at), min(at)) for key, at in times.items()])

    def close(self) -> None:
        """Do nothing."""
