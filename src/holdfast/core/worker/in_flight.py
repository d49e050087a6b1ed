"""The messages that a worker claimed and has not settled yet."""

from dataclasses import dataclass
from threading import Event, Lock
from typing import Generic

from holdfast.core.events import Events
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import M, get_lease
from holdfast.core.worker.outcome import Outcome
from holdfast.core.worker.settle import SettleResult, settle


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The attempts of one run of a worker, counted by result."""

    completed: int
    retried: int
    dead_lettered: int
    given_back: int
    abandoned: int  # lost, or left until the lease runs out


class InFlight(Generic[M]):
    """Settles the messages of one run and counts the results.

    When `give_up` is set, settling no longer waits for a queue that does not respond, and
    watchdogs end the work of their children.
    """

    def __init__(self, queue: QueueManager[M], events: Events) -> None:
        self.give_up = Event()
        self.lost_until = 0.0
        """Monotonic. When the last of the lost leases has also run out at the queue."""
        self._queue = queue
        self._events = events
        self._leases: set[Lease] = set()
        self._counts = dict.fromkeys(SettleResult, 0)
        self._dead_lettered_before = queue.dead_lettered_by_poll
        self._lock = Lock()

    def add(self, lease: Lease) -> None:
        """Add a claimed message. It stays in flight until it is settled."""
        self._leases.add(lease)

    def get_leases(self) -> tuple[Lease, ...]:
        """Return the leases of claimed messages that are not settled, also lost ones."""
        return tuple(self._leases)

    def settle(self, message: M, outcome: Outcome, seconds: float = 0.0) -> None:
        """Settle a message and count the result."""
        result = settle(
            self._queue, message, outcome, self._events, seconds=seconds, give_up=self.give_up
        )
        lease = get_lease(message)
        with self._lock:  # remove and count in one step, or a report could miss the message
            self._counts[result] += 1
            self._leases.discard(lease)
            if result is SettleResult.ABANDONED:
                self.lost_until = max(self.lost_until, lease.deadline)

    def make_report(self) -> WorkerReport:
        """Return the counts of this run.

        Messages still in flight count as abandoned, because their handlers may never return.
        Messages that `poll` dead-lettered are included, although no handler saw them.
        """
        with self._lock:
            counts, unsettled = self._counts.copy(), len(self._leases)
        by_poll = self._queue.dead_lettered_by_poll - self._dead_lettered_before
        return WorkerReport(
            completed=counts[SettleResult.COMPLETED],
            retried=counts[SettleResult.RETRIED],
            dead_lettered=counts[SettleResult.DEAD_LETTERED] + by_poll,
            given_back=counts[SettleResult.GIVEN_BACK],
            abandoned=counts[SettleResult.ABANDONED] + unsettled,
        )
