"""The journal of calls, so that a test can count what a design costs."""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One request that reached the service or should have."""

    operation: str
    """As AWS writes it: `DeleteMessageBatch`."""
    queue: str
    """The queue's name; empty for a call that names none."""
    entries: int
    """How many a batch carries; 1 for any other call."""
    at_seconds: float
    """On the clock's monotonic time."""


class CallLog:
    """Every call in order. Safe to read while threads call."""

    def __init__(self) -> None:
        self._calls: list[RecordedCall] = []
        self._lock = Lock()

    def note(self, call: RecordedCall) -> None:
        with self._lock:
            self._calls.append(call)

    def of(self, *operations: str) -> list[RecordedCall]:
        """Those of these operations; all of them when none is named."""
        with self._lock:
            return [c for c in self._calls if not operations or c.operation in operations]

    def count(self, *operations: str) -> int:
        """How many calls: what AWS charges for."""
        return len(self.of(*operations))

    def entries(self, *operations: str) -> int:
        """How many messages those calls were about, each entry of a batch counted."""
        return sum(call.entries for call in self.of(*operations))

    def clear(self) -> None:
        """Forget what was, to count from here."""
        with self._lock:
            self._calls.clear()

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(self.of())

    def __len__(self) -> int:
        return self.count()

    def __getitem__(self, index: int) -> RecordedCall:
        return self.of()[index]
