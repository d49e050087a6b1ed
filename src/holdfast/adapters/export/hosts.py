"""A limit on the connections to one host, however many worker slots there are."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

_CHECK_INTERVAL_SECONDS = 0.25  # how soon a waiting task notices that it is cancelled


class HostSlots:
    """Connection slots of hosts, for this process only. Safe for threads."""

    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        self._busy: Counter[str] = Counter()
        self._freed = Condition()

    @contextmanager
    def take_slot(self, origin: str, report_waiting: Callable[[], None]) -> Iterator[None]:
        """Wait for a slot and keep it while the context lasts.

        Calls `report_waiting` from time to time while it waits. If that raises, the wait
        ends.
        """
        while not self._try_take(origin):
            report_waiting()
        try:
            yield
        finally:
            self._release(origin)

    def _try_take(self, origin: str) -> bool:
        with self._freed:
            if self._busy[origin] >= self._per_host:
                self._freed.wait(_CHECK_INTERVAL_SECONDS)
            if self._busy[origin] >= self._per_host:
                return False
            self._busy[origin] += 1
            return True

    def _release(self, origin: str) -> None:
        with self._freed:
            self._busy[origin] -= 1
            if not self._busy[origin]:
                del self._busy[origin]  # a job may name a million hosts
            self._freed.notify_all()
