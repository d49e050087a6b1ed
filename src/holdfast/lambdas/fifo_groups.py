"""Whose turn it is: the messages of a batch, in lanes.

In a FIFO batch a group is a lane: one message at a time, and none after one that failed.
Elsewhere each message has a lane of its own.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Condition
from typing import Generic

from holdfast.core.queue.message import M


@dataclass(frozen=True, slots=True, eq=False)
class BatchEntry(Generic[M]):
    """One message of the batch that is ours."""

    id: str
    lane: str
    message: M


class FifoGroups(Generic[M]):
    """Safe to share between threads."""

    def __init__(self, entries: Iterable[BatchEntry[M]]) -> None:
        self._waiting = deque(entries)
        self._busy: set[str] = set()
        self._changed = Condition()

    def take(self) -> BatchEntry[M] | None:
        """The next that may be started, as soon as there is one; None when none will be."""
        with self._changed:
            while self._waiting:
                if (entry := self._first_free()) is not None:
                    self._waiting.remove(entry)
                    self._busy.add(entry.lane)
                    return entry
                self._changed.wait()
        return None

    def _first_free(self) -> BatchEntry[M] | None:
        return next((e for e in self._waiting if e.lane not in self._busy), None)

    def finished(self, entry: BatchEntry[M]) -> None:
        """It was taken and is done: the next of its lane may start."""
        with self._changed:
            self._busy.discard(entry.lane)
            self._changed.notify_all()

    def failed(self, entry: BatchEntry[M]) -> list[BatchEntry[M]]:
        """It was taken and is not done: the rest of its lane, which will not be started."""
        with self._changed:
            rest = [waiting for waiting in self._waiting if waiting.lane == entry.lane]
            self._waiting = deque(e for e in self._waiting if e.lane != entry.lane)
            self._changed.notify_all()
        return rest

    def close(self) -> list[BatchEntry[M]]:
        """Nothing more is started: all that was not."""
        with self._changed:
            rest, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        return rest
