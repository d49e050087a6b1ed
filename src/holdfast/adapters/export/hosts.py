"""So many connections to one host at a time, however many slots there are."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

_GLANCE_SECONDS = 0.25  # how soon one that waits notices that it need not any more


class HostSlots:
    """Places at hosts. Safe for threads; of this process only."""

    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        self._busy: Counter[str] = Counter()
        self._freed = Condition()

    @contextmanager
    def place(self, origin: str, still_waiting: Callable[[], None]) -> Iterator[None]:
        """Wait for a place and keep it. `still_waiting` is called now and then meanwhile;
        what it raises ends the wait."""
        while not self._taken(origin):
            still_waiting()
        try:
            yield
        finally:
            self._give(origin)

    def _taken(self, origin: str) -> bool:
        with self._freed:
            if self._busy[origin] >= self._per_host:
                self._freed.wait(_GLANCE_SECONDS)
            if self._busy[origin] >= self._per_host:
                return False
            self._busy[origin] += 1
            return True

    def _give(self, origin: str) -> None:
        with self._freed:
            self._busy[origin] -= 1
            if not self._busy[origin]:
                del self._busy[origin]  # a job may name a million hosts
            self._freed.notify_all()
