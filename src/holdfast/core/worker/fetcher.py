"""The feed: where slots get their messages.

There is no thread that polls for others, so no message changes hands on the way. A slot
that needs work and finds none ready polls itself, for all slots that wait at that moment
(the leader); the others wait for their turn and find the rest ready (the followers):

    slot 1  take ── poll(3) ──▶ m1 ─ work …
    slot 2  take ─ waits ─────▶ m2 ─ work …
    slot 3  take ─ waits ─────▶ m3 ─ work …

Never more is claimed than slots wait for, so nothing that is held lies idle, and what is
claimed is renewed from then on.
"""

from collections import deque
from collections.abc import Iterable
from random import Random
from threading import Condition, Event, Lock
from typing import Generic

from holdfast.core.backoff import Backoff
from holdfast.core.clock import Clock
from holdfast.core.events import Claimed, Events, PollFailed
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import M, lease_of
from holdfast.core.worker.in_flight import InFlight
from holdfast.core.worker.outcome import GiveBack

_REST = Backoff(first_seconds=0.1, factor=2.0, max_seconds=10.0)

_PATIENCE_SECONDS = 20.0  # SQS's longest; others wake as soon as something is there
_PATIENCE_UNTIL_EMPTY_SECONDS = 0.1
_LOOK_SECONDS = 0.5  # between two looks at the queue's books, which may cost a scan

# What we gave up is not claimable at our deadline to the millisecond: the queue judges by
# its own clock.
_EXPIRY_MARGIN_SECONDS = 1.0


class Fetcher(Generic[M]):
    """Claims messages and has them renewed, until closed. Safe to share between threads."""

    def __init__(
        self,
        queue: QueueManager[M],
        keeper: LeaseKeeper,
        ledger: InFlight[M],
        clock: Clock,
        events: Events,
        *,
        slots: int = 1,
        stall_seconds: float | None = None,
        until_empty: bool = False,
    ) -> None:
        self._queue = queue
        self._keeper = keeper
        self._ledger = ledger
        self._clock = clock
        self._events = events
        self._stall_seconds = stall_seconds
        self._until_empty = until_empty
        self._turn = Lock()
        self._ready: deque[M] = deque()
        self._company = min(slots, queue.poll_batch)  # who can be asked for at once
        self._counting = Condition()
        self._waiting = 0
        self._closed = Event()
        self._look_at = 0.0
        self._empty_looks = 0
        self._random = Random()

    # -- for slots

    def take(self) -> M | None:
        """The next message, whenever it comes; None once the feed is closed."""
        with self._counting:
            self._waiting += 1
            if self._waiting >= self._company:
                self._counting.notify()
        try:
            with self._turn:
                return self._next()
        finally:
            with self._counting:
                self._waiting -= 1

    def _next(self) -> M | None:
        ready = self._ready
        if not ready:
            ready.extend(self.poll(self._gathered()))
        if self._closed.is_set():
            self._give_back(ready)
            ready.clear()
        return ready.popleft() if ready else None

    def _gathered(self) -> int:
        """How many slots wait, after giving others the moment it takes to come."""
        if seconds := self._queue.gather_seconds:
            with self._counting:
                self._counting.wait_for(lambda: self._waiting >= self._company, seconds)
        return self._waiting

    def poll(self, limit: int) -> list[M]:
        """Claim up to `limit` messages as soon as there are any; none once closed."""
        failures = 0
        while not self._closed.is_set():
            try:
                polled = self._poll(limit)
                failures = 0
                if polled and not self._closed.is_set():
                    return polled
                self._give_back(polled)
                self._close_if_empty()
            except Exception as error:  # the disk or network is away: it will come back
                failures += 1
                self.rest(error, failures)
        return []

    def rest(self, error: Exception, failures: int) -> None:
        """Report an error that may pass, and wait: longer each time, never in step."""
        self._events.emit(PollFailed(self._queue.name, f"{type(error).__name__}: {error}"))
        self._clock.wait(self._closed, _REST.delay(failures, self._random))

    # -- for the worker

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Claim nothing more. What was claimed and not taken is given back."""
        self._closed.set()

    # -- parts

    def _poll(self, limit: int) -> list[M]:
        patience = _PATIENCE_UNTIL_EMPTY_SECONDS if self._until_empty else _PATIENCE_SECONDS
        polled = self._queue.poll(
            min(limit, self._queue.poll_batch), wait_seconds=patience, stop=self._closed
        )
        for message in polled:
            self._ledger.begin(lease_of(message))
        try:
            for message in polled:
                self._hold(lease_of(message))
        except BaseException:
            # Without a renewal it would be in flight for a whole lease, and not worked on.
            self._give_back(polled)
            raise
        return polled

    def _hold(self, lease: Lease) -> None:
        self._keeper.hold(lease, stall_seconds=self._stall_seconds)
        if self._events.listening:
            self._events.emit(Claimed(self._queue.name, lease.message_id, lease.attempt))

    def _give_back(self, messages: Iterable[M]) -> None:
        for message in messages:
            self._ledger.settle(message, GiveBack())

    def _close_if_empty(self) -> None:
        now = self._clock.monotonic()
        if not self._until_empty or self._holds_any(now) or now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        stats = self._queue.stats()
        empty = stats.ready == stats.delayed == stats.expired == 0
        self._empty_looks = self._empty_looks + 1 if empty else 0
        if self._empty_looks >= self._queue.looks_until_empty:
            self.close()

    def _holds_any(self, now: float) -> bool:
        """Anything that may come back to us: held, put back, or given up and not expired."""
        expired = now - _EXPIRY_MARGIN_SECONDS
        returning_until = max(self._queue.returning_until, self._ledger.lost_until)
        return expired < returning_until or any(
            lease.live or expired < lease.deadline for lease in self._ledger.open()
        )
