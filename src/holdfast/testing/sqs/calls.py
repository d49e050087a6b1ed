"""The log of calls, so that a test can count what a design costs."""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One request, whether it reached the service or not."""

    operation: str
    """As AWS writes it: `DeleteMessageBatch`."""
    queue: str
    """The queue's name; empty for a call that names none."""
    entries: int
    """The number of entries of a batch; 1 for any other call."""
    at_seconds: float
    """On the clock's monotonic time."""


class CallLog:
    """All calls in order. A test may read it while threads make calls."""

    def __init__(self) -> None:
        self._calls: list[RecordedCall] = []
        self._lock = Lock()

    def record(self, call: RecordedCall) -> None:
        """Add a call."""
        with self._lock:
            self._calls.append(call)

    def select(self, *operations: str) -> list[RecordedCall]:
        """Return the calls of these operations, or all calls if none is named."""
        with self._lock:
            return [c for c in self._calls if not operations or c.operation in operations]

    def count(self, *operations: str) -> int:
        """Count the calls, which AWS charges for."""
        return len(self.select(*operations))

    def entries(self, *operations: str) -> int:
        """Count the messages of those calls; each entry of a batch is one."""
        return sum(call.entries for call in self.select(*operations))

    def clear(self) -> None:
        """Remove all calls, to count from here."""
        with self._lock:
            self._calls.clear()

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self.select())

    def __len__(self) -> int:
        return self.count()

    def __getitem__(self, index: int) -> RecordedCall:
        return self.select()[index]
