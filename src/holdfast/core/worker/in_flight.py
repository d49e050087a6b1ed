"""The worker's books: every message it took ends here, once."""

from dataclasses import dataclass
from threading import Event, Lock
from typing import Generic

from holdfast.core.events import Events
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import M, lease_of
from holdfast.core.worker.outcome import Outcome
from holdfast.core.worker.settle import SettleResult, settle


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one run of a worker did, counted in attempts."""

    completed: int
    retried: int
    dead_lettered: int
    given_back: int
    abandoned: int  # lost, or left to run out


class InFlight(Generic[M]):
    """Settles and counts. `give_up` ends the patience with a queue that does not answer."""

    def __init__(self, queue: QueueManager[M], events: Events) -> None:
        self.give_up = Event()
        self.lost_until = 0.0
        """Monotonic; when the last of the leases that were lost has run out, too."""
        self._queue = queue
        self._events = events
        self._open: set[Lease] = set()
        self._counts = dict.fromkeys(SettleResult, 0)
        self._polled_dead = queue.dead_lettered_by_poll  # before this run
        self._lock = Lock()

    def begin(self, lease: Lease) -> None:
        """A message was claimed; its page stays open until it is settled."""
        self._open.add(lease)

    def open(self) -> tuple[Lease, ...]:
        """Leases of what was claimed and not settled, also those that are lost."""
        return tuple(self._open)

    def settle(self, message: M, outcome: Outcome, seconds: float = 0.0) -> None:
        settled = settle(
            self._queue, message, outcome, self._events, seconds=seconds, give_up=self.give_up
        )
        lease = lease_of(message)
        with self._lock:  # closed and counted at once, or a report could miss it
            self._counts[settled] += 1
            self._open.discard(lease)
            if settled is SettleResult.ABANDONED:
                self.lost_until = max(self.lost_until, lease.deadline)

    def report(self) -> WorkerReport:
        """What is still open counts as abandoned: its handler may never return. What the
        queue dead-lettered while it was polled counts, although no handler saw it."""
        with self._lock:
            count, still_open = self._counts.copy(), len(self._open)
        polled_dead = self._queue.dead_lettered_by_poll - self._polled_dead
        return WorkerReport(
            completed=count[SettleResult.COMPLETED],
            retried=count[SettleResult.RETRIED],
            dead_lettered=count[SettleResult.DEAD_LETTERED] + polled_dead,
            given_back=count[SettleResult.GIVEN_BACK],
            abandoned=count[SettleResult.ABANDONED] + still_open,
        )
