"""A heap of entries by the time at which each is due. Leases and heartbeats are kept in one."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar

NOT_SCHEDULED = -inf
"""The due time of an entry that is not on the heap."""

_MIN_SWEEP_ITEMS = 1024  # a smaller heap is not worth a sweep


class HeapEntry(Protocol):
    """What the heap needs of an entry. Only the heap sets `due_at`."""

    due_at: float

    @property
    def key(self) -> Any:
        """What the entry is about."""

    @property
    def live(self) -> bool:
        """Whether the entry is still wanted. False is final while it is on the heap."""


K = TypeVar("K")
E = TypeVar("E", bound=HeapEntry)


class DeadlineHeap(Generic[K, E]):
    """The live entries by key, and a heap of those that are scheduled. Threads may share it.

    A schedule is a heap with its own rules of when an entry is due. It takes the lock for
    steps that belong together.

    The heap is not notified when an entry dies or is scheduled anew. An outdated item stays
    in the heap until it comes up, or until the heap outgrows twice the number of entries
    that were live at the last sweep. So the size follows the live entries, and the cost per
    entry is constant.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        # All entries, scheduled or not. The schedule adds them; the heap removes dead ones.
        self._entries: dict[K, E] = {}
        self._lock = RLock()
        self._wake = wake
        self._awaited_at = NOT_SCHEDULED
        self._items: list[tuple[float, int, E]] = []
        self._numbers = count()
        self._max_items = _MIN_SWEEP_ITEMS

    def take(self, until: float) -> E | None:
        """Remove and return the live entry that is due first, if it is due by `until`.

        The entry stays known. Put it again to schedule it.
        """
        with self._lock:
            if self._drop_outdated() > until or not self._items:
                return None
            entry = heappop(self._items)[2]
            entry.due_at = NOT_SCHEDULED
            return entry

    def await_next(self) -> float:
        """Return when the next entry is due, or infinity if none is scheduled.

        From now on `wake` is called as soon as an entry becomes due sooner than that.
        """
        with self._lock:
            self._awaited_at = self._drop_outdated()
            return self._awaited_at

    # -- under the lock

    def _put(self, entry: E, due_at: float) -> None:
        """Schedule the entry, or schedule it anew."""
        if due_at == entry.due_at:
            return
        entry.due_at = due_at
        heappush(self._items, (due_at, next(self._numbers), entry))
        if due_at < self._awaited_at:
            self._awaited_at = due_at
            self._wake()
        if len(self._items) > self._max_items:
            self._sweep()

    def _forget(self, entry: E) -> None:
        """Remove a dead entry, unless another one has its key by now."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def _drop_outdated(self) -> float:
        while self._items:
            due_at, _, entry = self._items[0]
            if entry.due_at == due_at and entry.live:
                return due_at
            heappop(self._items)
            if not entry.live:
                self._forget(entry)
        return inf

    def _sweep(self) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if entry.live}
        self._items = [
            item for item in self._items if item[2].due_at == item[0] and item[2].live
        ]
        heapify(self._items)
        self._max_items = max(_MIN_SWEEP_ITEMS, 2 * len(self._entries))
