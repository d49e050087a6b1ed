"""The fetcher: it passes messages to the slots of a worker, and claims them when none is left.

No dedicated thread polls for the slots, so messages need no hand-over through one. A slot that
needs work and finds none ready polls itself, for all slots that wait at that moment (the
leader). The other slots wait until the leader returns and find their messages ready:

    slot 1  fetch ── poll(3) ──▶ m1 ─ work …
    slot 2  fetch ─ waits ─────▶ m2 ─ work …
    slot 3  fetch ─ waits ─────▶ m3 ─ work …

Without prefetch, no more messages are claimed than slots are waiting, so a claimed message is
worked on at once. With prefetch, the leader also claims what the recent pace finishes within
about a second:

    claimed ──▶ ready ──▶ started
                  ├─ waited for two seconds, because a handler became slow ─▶ given back
                  ├─ the worker stops ─▶ given back, or started if that would cost an attempt
                  └─ its lease was lost ─▶ abandoned

The keeper renews all leases from the claim on. Handlers that take no time are run by few slots,
because waking a thread takes longer than such a handler does.
"""

from collections.abc import Sequence
from math import inf
from threading import Condition, Lock
from typing import Any

from holdfast.errors import LeaseLost
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import M, get_lease
from holdfast.worker.outcome import Abandoned
from holdfast.worker.pace import Pace
from holdfast.worker.poller import Poller
from holdfast.worker.settle import InFlight

_PREFETCH_SECONDS = 1.0  # of work that is claimed ahead
_SHARE_SECONDS = 0.001  # of work that is worth waking another slot for
_IDLE_SECONDS = 0.01  # until slots that were not woken take over from a slow handler


class Fetcher(Poller[M]):
    """Passes messages to slots until closed. Threads may share it.

    `prefetch` is the maximum number of messages that are claimed ahead. With 0 there is no
    background thread, so `start` and `stop` do nothing.
    """

    def __init__(
        self,
        keeper: LeaseKeeper,
        in_flight: InFlight[M],
        *,
        slots: int = 1,
        prefetch: int = 0,
        stall_seconds: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(keeper, in_flight, **options)
        self._ready = in_flight.ready
        self._slots = slots
        self._stall_seconds = stall_seconds
        self._pace = Pace()
        self._prefetch = prefetch
        self._prefetch_seconds = min(_PREFETCH_SECONDS, self._queue.lease_seconds / 4)
        self._had_redelivery = False  # in the last poll
        self._refunds = "refund" in self._queue.capabilities
        lock = Lock()
        self._changed, self._arrived = Condition(lock), Condition(lock)
        self._waiting = 0
        self._polling = False
        self._starts = self._starts_checked = 0
        self._upkeep_at = inf
        self._loop = BackgroundLoop("holdfast-prefetch", self.tick, self._clock)
        if prefetch:
            in_flight.ask_for_flush = self._ask_for_upkeep

    # -- called by the worker

    def start(self) -> None:
        """Start the background thread. Raises RuntimeError if it cannot be started."""
        if self._prefetch:
            self._loop.start()

    def stop(self, wait_seconds: float) -> None:
        """End the background thread after it has given back what is ready and sent all acks.

        This waits at most `wait_seconds`. What is left then comes back when its lease ends.
        """
        self._ask_for_upkeep(-inf)
        until = self._clock.monotonic() + wait_seconds
        while self._in_flight.count_waiting() and self._clock.monotonic() < until:
            self._clock.sleep(0.01)
        if self._prefetch:
            self._loop.stop(max(0.0, until - self._clock.monotonic()))
        self._in_flight.lose_waiting("the worker stopped before it was settled")

    def close(self) -> None:
        """Stop claiming. Messages that are ready are given back, or started if they drain."""
        super().close()
        with self._changed:
            self._changed.notify_all()
        self._ask_for_upkeep(-inf)

    @property
    def is_done(self) -> bool:
        """Whether slots get no more messages."""
        return self.closed and not (self._ready and self._drains)

    @property
    def _drains(self) -> bool:
        """Whether messages that were claimed before the close are started after it.

        They are if giving them back would cost them an attempt.
        """
        may_drain = self._prefetch > 0 and not self._refunds
        return may_drain and not self._in_flight.give_up.is_set()

    # -- called by slots

    def fetch(self) -> M | None:
        """Return the next message as soon as there is one, or None once closed."""
        while True:
            message = self.take()
            if message is not None:
                return message
            if self.is_done:
                self._give_back_ready()
                return None
            self._wait_or_lead()

    def take(self) -> M | None:
        """Return a message that is ready, now as started, or None if there is none."""
        while not self.is_done:
            try:
                message = self._ready.popleft()
            except IndexError:
                return None
            if self._begin(message):
                return message
        return None

    def fill(self, free: int) -> bool:
        """Claim messages for `free` slots, and some ahead. Return False once closed."""
        messages = self.poll(self._compute_limit(free))
        self._ready.extend(self._arrange(messages, free))
        if self.is_done:  # it was closed meanwhile
            self._give_back_ready()
        return bool(messages)

    def note_finished(self, seconds: float) -> None:
        """Note how long a handler took."""
        self._pace.note(seconds)

    def _begin(self, message: M) -> bool:
        """Note that the work on a message starts. Return False if its lease is lost."""
        lease, now = get_lease(message), self._clock.monotonic()
        try:
            lease.check(now)  # it may have waited, and the process may have been frozen
        except LeaseLost:
            self._in_flight.settle(message, Abandoned(lease.reason))
            return False
        lease.last_beat_at = now  # a stall counts from the start of the work
        if self._stall_seconds is not None:
            self._keeper.hold(lease, stall_seconds=self._stall_seconds)
        self._in_flight.note_start(lease, now)
        self._starts += 1
        return True

    # -- slots without a message

    def _wait_or_lead(self) -> None:
        """Wait until messages are ready, or poll for all slots that wait."""
        with self._changed:
            if self._ready or self.closed:
                return
            if self._polling:
                self._wait()
                return
            self._polling = True
        try:
            self.fill(self._wait_for_slots())
        finally:
            with self._changed:
                self._polling = False
                self._wake_slots()

    def _wait(self) -> None:
        self._waiting += 1
        if self._waiting + 1 >= self._max_batch:
            self._arrived.notify()
        self._changed.wait()
        self._waiting -= 1

    @property
    def _max_batch(self) -> int:
        return min(self._slots, self._queue.poll_batch)

    def _wait_for_slots(self) -> int:
        """Wait briefly for more slots and return how many are waiting, this one included."""
        seconds = self._queue.slot_wait_seconds
        with self._changed:
            if seconds and self._compute_limit(1) < self._max_batch:
                self._arrived.wait_for(lambda: self._waiting + 1 >= self._max_batch, seconds)
            return self._waiting + 1

    def _wake_slots(self) -> None:
        """Wake as many slots as the ready messages are worth, besides the one that polled.

        If that is too few, because a handler becomes slow, the upkeep wakes the others.
        """
        ready = len(self._ready)
        worth = ready
        if self._prefetch and not self.closed:
            worth = min(ready, int(ready * self._pace.seconds / _SHARE_SECONDS))
        self._changed.notify(self._waiting if self.closed else worth)
        if worth < ready:
            self._ask_for_upkeep(self._clock.monotonic() + _IDLE_SECONDS)

    # -- claiming ahead

    def _compute_limit(self, free: int) -> int:
        """Return how many messages to claim: one for each free slot, and some ahead."""
        if not self._prefetch or self._had_redelivery:
            return free
        seconds = self._prefetch_seconds
        since = self._clock.monotonic() - seconds
        slow = sum(started_at <= since for _, started_at in self._in_flight.get_started())
        return free + min(self._prefetch, self._pace.count_ahead(seconds, self._slots - slow))

    def _arrange(self, messages: list[M], free: int) -> Sequence[M]:
        """Return the messages to keep, in the order in which they are to be started.

        A crash charges an attempt to every message that is claimed, started or not. A message
        that was delivered before may be the one that crashes workers. So it is started last,
        when no other message waits, and those that would wait beside it are given back.
        """
        again = [message for message in messages if get_lease(message).attempt > 1]
        self._had_redelivery = bool(again)
        if not again or len(messages) <= free:
            return messages
        first = [message for message in messages if get_lease(message).attempt == 1]
        kept = max(1, free - len(first)) if self._refunds else len(again)
        self._give_back(again[kept:])
        return first + again[:kept]

    # -- upkeep, in the background

    def _ask_for_upkeep(self, at: float) -> None:
        """Have the upkeep run at that time at the latest."""
        if at < self._upkeep_at:
            self._upkeep_at = at
            self._loop.wake()

    def tick(self) -> float:
        """Do what no slot has time for, and return when to do it next."""
        # Reset before the checks, so that a request that comes during them is not missed.
        self._upkeep_at = inf
        now = self._clock.monotonic()
        next_at = self._in_flight.flush_acks(inf if self.closed else now)
        if self.is_done:
            self._give_back_ready()
        else:
            next_at = min(next_at, self._give_back_overdue(now), self._wake_idle_slots(now))
            if self._starts != self._starts_checked:
                # Slots are busy, and each of their requests would wake this thread.
                next_at = min(next_at, now + _IDLE_SECONDS)
            self._starts_checked = self._starts
        self._upkeep_at = min(self._upkeep_at, next_at)
        return next_at

    def _give_back_ready(self) -> None:
        while self._ready:
            try:
                message = self._ready.popleft()
            except IndexError:
                return
            self._give_back([message])

    def _give_back_overdue(self, now: float) -> float:
        """Give back messages that have waited for too long. Return when to check again.

        If that costs an attempt, only a first delivery is given back, so that a message
        loses one attempt at most.
        """
        max_wait_seconds = 2 * self._prefetch_seconds
        overdue: list[M] = []
        kept: list[M] = []
        while self._ready:
            try:
                if now - get_lease(self._ready[0]).claimed_at < max_wait_seconds:
                    break
                message = self._ready.popleft()
            except IndexError:  # a slot took it meanwhile
                break
            may_go = self._refunds or get_lease(message).attempt == 1
            (overdue if may_go else kept).append(message)
        self._ready.extendleft(reversed(kept))
        if overdue:
            self._pace = Pace()  # what was fast before says nothing any more
            self._give_back(overdue)
        return now + self._prefetch_seconds if self._ready else inf

    def _wake_idle_slots(self, now: float) -> float:
        """Wake slots if no message was started for a moment. Return when to check again."""
        with self._changed:
            is_needed = bool(self._ready) or not self._polling
            if not (self._waiting and is_needed):
                return inf
            if self._starts == self._starts_checked:
                self._changed.notify(len(self._ready) + 1)
        return now + _IDLE_SECONDS
