"""The worker's books: every message it took ends here, once."""

from dataclasses import dataclass
from threading import Event, Lock
from typing import Generic

from holdfast.core.events import Events
from holdfast.core.message import M
from holdfast.core.outcome import Outcome
from holdfast.core.queue import QueueManager
from holdfast.core.settle import Settled, settle


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one run of a worker did, counted in attempts."""

    completed: int
    retried: int
    dead_lettered: int
    given_back: int
    abandoned: int  # lost, or left to run out


class Ledger(Generic[M]):
    """Settles and counts. `give_up` ends the patience with a queue that does not answer."""

    def __init__(self, queue: QueueManager[M], events: Events) -> None:
        self.give_up = Event()
        self._queue = queue
        self._events = events
        self._counts = dict.fromkeys(Settled, 0)
        self._lock = Lock()

    def settle(self, message: M, outcome: Outcome, seconds: float = 0.0) -> None:
        settled = settle(
            self._queue, message, outcome, self._events, seconds=seconds, give_up=self.give_up
        )
        with self._lock:
            self._counts[settled] += 1

    def report(self, *, unfinished: int) -> WorkerReport:
        """`unfinished`: messages whose handler has not returned, and may never."""
        with self._lock:
            count = self._counts.copy()
        return WorkerReport(
            completed=count[Settled.COMPLETED],
            retried=count[Settled.RETRIED],
            dead_lettered=count[Settled.DEAD_LETTERED],
            given_back=count[Settled.GIVEN_BACK],
            abandoned=count[Settled.ABANDONED] + unfinished,
        )
