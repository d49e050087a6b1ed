"""The SQLite queue in the memory of this process, for tests and for `memory:`."""

import json
from itertools import count
from threading import Event
from typing import Any, Unpack
from weakref import WeakSet

from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.lease import Lease
from holdfast.queue.admission import Delivery
from holdfast.queue.manager import QueueKeywords, QueueManager
from holdfast.queue.message import AnyMessage, M
from holdfast.queues.sqlite.queue import PUSH, SQLiteQueue
from holdfast.queues.sqlite.schema import QUEUES
from holdfast.store.sqlite.database import MemoryDatabase
from holdfast.testing.clock import SkippingClock

# After a claim, a worker passes the lease to its keeper within this time.
_HAND_OVER_MS = 2000
_NEW_CLAIM_CHECK_SECONDS = 0.001
_NEXT_CLAIM = """
SELECT min(at_ms) FROM messages WHERE queue_no = ? AND state IN (0, 1)
"""
_NEW_CLAIMS = """
SELECT message_no, claims FROM messages WHERE queue_no = ? AND state = 1 AND claimed_ms > ?
"""
# The queues of a process number their messages apart, so a lease of one holds none of another.
_NUMBERS_PER_QUEUE = 10**9
_SET_LAST_NUMBER = """
INSERT INTO messages (message_no, queue_no, state, at_ms, dedupe, claims, refunds, id, body)
VALUES (?, 1, 4, 0, 0, 0, 0, '', '')
"""
_queue_numbers = count()


class MemoryQueue(SQLiteQueue[M]):
    """A queue in this process, which disappears with it. It is safe for threads.

    With `shared_with` it is another worker's view of that queue's messages. Leases expire by
    the first queue's clock, but each worker counts its own deadlines by its own clock, so a
    test can freeze one worker while time passes for others.

    With a SkippingClock, a poll that may wait does not wait for a message that is due later:
    the clock skips to that time. A message that was polled but neither settled nor held by a
    keeper comes back when its lease ends, as after a crash.
    """

    # As queues without a file: a call costs a worker nothing that a larger batch would save.
    renew_batch = QueueManager.renew_batch
    poll_batch = QueueManager.poll_batch

    def __init__(
        self,
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # the default of M
        *,
        name: str = "memory",
        dedupe: bool = False,
        shared_with: "MemoryQueue[Any] | None" = None,
        **settings: Unpack[QueueKeywords],
    ) -> None:
        clock = settings.get("clock", SYSTEM_CLOCK)
        self._machine_clock: Clock = shared_with._machine_clock if shared_with else clock
        self._skips = isinstance(self._machine_clock, SkippingClock)
        self._leases: WeakSet[Lease] = shared_with._leases if shared_with else WeakSet()
        super().__init__(
            shared_with._database if shared_with else _make_database(),
            model,
            dedupe=dedupe,
            machine_clock=self._machine_clock,
            **settings,
        )
        self.name = self.operator.name = name

    def inject(self, body: bytes) -> None:
        """Put raw bytes into the queue, as another or a newer program might do."""
        try:
            message_id = json.loads(body)["id"]
        except (ValueError, KeyError, TypeError, RecursionError):
            message_id = None
        if not isinstance(message_id, str):
            message_id = "unknown"
        values = (self._queue_no, self._read_ms(), self.dedupe, message_id, body, None)
        self._database.execute(PUSH, values)

    def _make_lease(self, delivery: Delivery, message_id: str, attempt: int) -> Lease:
        lease = super()._make_lease(delivery, message_id, attempt)
        if self._skips:
            self._leases.add(lease)
        return lease

    # -- skipping the time until the next message is due

    def _wait_for_message(self, stop: Event, seconds: float) -> bool:
        clock = self._machine_clock
        if isinstance(clock, SkippingClock):
            while (skipped := self._try_skip(clock)) is None:
                if clock.wait(stop, _NEW_CLAIM_CHECK_SECONDS):
                    return True
            if skipped:
                return stop.is_set()
        return super()._wait_for_message(stop, seconds)

    def _try_skip(self, clock: SkippingClock) -> bool | None:
        """Skip to the next claim if there is one, or return None if it is too early for that.

        After a claim it is too early, or the message could be taken from its worker. While a
        keeper renews a lease, its message is being worked on, so there is no next claim.
        """
        leases = [lease for lease in list(self._leases) if lease.is_watched]
        watched = {(lease.handle, lease.fence) for lease in leases}
        # A transaction, so that no message is claimed before the clock has skipped.
        with self._database.begin_write() as connection:
            since_ms = self._read_ms() - _HAND_OVER_MS
            claims = connection.execute(_NEW_CLAIMS, (self._queue_no, since_ms)).fetchall()
            if not watched.issuperset(claims):
                return None
            [at_ms] = connection.execute(_NEXT_CLAIM, (self._queue_no,)).fetchone()
            if at_ms is None or any(lease.live for lease in leases):
                return False
            clock.skip_to((at_ms - self._offset_ms) / 1000)
            return True


def _make_database() -> MemoryDatabase:
    database = MemoryDatabase(QUEUES)
    database.execute(_SET_LAST_NUMBER, (next(_queue_numbers) * _NUMBERS_PER_QUEUE,))
    return database


class MemoryQueueFactory:
    """Makes empty queues in memory. The pytest fixture `memory_queue` is one.

    Their clock is the factory's, unless a queue is given its own.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(
        self,
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # the default of M
        *,
        name: str = "memory",
        dedupe: bool = False,
        **settings: Unpack[QueueKeywords],
    ) -> MemoryQueue[M]:
        """Return an empty queue for messages of this type."""
        settings.setdefault("clock", self.clock)
        return MemoryQueue(model, name=name, dedupe=dedupe, **settings)
