"""The order in which the messages of a batch are started.

In a FIFO batch each group is a lane: one message of it runs at a time, and none is started
after a message that failed. In other batches each message has a lane of its own.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Condition
from typing import Generic

from holdfast.core.queue.message import M


@dataclass(frozen=True, slots=True, eq=False)
class BatchEntry(Generic[M]):
    """One message of the batch whose lease this invocation holds."""

    id: str
    lane: str
    message: M


class FifoGroups(Generic[M]):
    """The messages of a batch that wait to be started. It is safe to share between threads."""

    def __init__(self, entries: Iterable[BatchEntry[M]]) -> None:
        self._waiting = deque(entries)
        self._busy: set[str] = set()
        self._changed = Condition()

    def take(self) -> BatchEntry[M] | None:
        """Wait for the next message that may be started, or return None if there is no more."""
        with self._changed:
            while self._waiting:
                if (entry := self._first_free()) is not None:
                    self._waiting.remove(entry)
                    self._busy.add(entry.lane)
                    return entry
                self._changed.wait()
        return None

    def _first_free(self) -> BatchEntry[M] | None:
        return next((entry for entry in self._waiting if entry.lane not in self._busy), None)

    def finish(self, entry: BatchEntry[M]) -> None:
        """Record that a taken message is done, so that the next of its lane may start."""
        with self._changed:
            self._busy.discard(entry.lane)
            self._changed.notify_all()

    def fail(self, entry: BatchEntry[M]) -> list[BatchEntry[M]]:
        """Record that a taken message failed, and return the rest of its lane.

        The returned messages will not be started.
        """
        with self._changed:
            rest = [waiting for waiting in self._waiting if waiting.lane == entry.lane]
            self._waiting = deque(other for other in self._waiting if other.lane != entry.lane)
            self._changed.notify_all()
        return rest

    def close(self) -> list[BatchEntry[M]]:
        """Start nothing more, and return the messages that were not started."""
        with self._changed:
            rest, self._waiting = list(self._waiting), deque()
            self._changed.notify_all()
        return rest
