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

from collections.abc import Callable, Iterable
from math import inf
from random import Random
from threading import Condition, Event, Lock
from typing import Generic

from holdfast.events import Claimed, PollFailed
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.backoff import Backoff
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import LOST
from holdfast.queue.message import M, get_lease
from holdfast.worker.outcome import GIVE_BACK, Abandoned
from holdfast.worker.run_end import RunEnd
from holdfast.worker.settle import ClaimedMessage, InFlight

_ERROR_BACKOFF = Backoff(first_seconds=0.1, factor=2.0, max_seconds=10.0)
_PREFETCH_SECONDS = 1.0  # of work that is claimed ahead
_SHARE_SECONDS = 0.001  # of work that is worth waking another slot for
_IDLE_SECONDS = 0.01  # until slots that were not woken take over from a slow handler
_FIRST_HANDLER_SECONDS = 1.0  # assumed until handlers have shown that they are faster
_NEWEST_WEIGHT = 0.2  # in the average: one handler of five seconds ends the prefetch at once
_MIN_HANDLER_SECONDS = 1e-6


class Fetcher(Generic[M]):
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
        until_empty: bool = False,
        until_done: bool = False,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.closed = False
        """Whether no more messages are claimed."""
        self._queue = in_flight.queue
        self._keeper = keeper
        self._in_flight = in_flight
        self._clock, self._events = in_flight.clock, in_flight.events
        self._end = RunEnd(in_flight, until_empty=until_empty, until_done=until_done)
        self._closed_event = Event()
        self._on_close = on_close
        self._random = Random()
        self._ready = in_flight.ready
        self._slots = slots
        # The average of recent handlers. Two slots that note theirs at the same moment may lose
        # one of them, which does no harm to an average.
        self._handler_seconds = _FIRST_HANDLER_SECONDS
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
        self.closed = True
        self._closed_event.set()
        self._on_close()
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

    def fetch(self) -> ClaimedMessage[M] | None:
        """Return the next message as soon as there is one, or None once closed."""
        while True:
            claimed = self.take()
            if claimed is not None:
                return claimed
            if self.is_done:
                self._release_ready()
                return None
            self._wait_or_lead()

    def take(self) -> ClaimedMessage[M] | None:
        """Return a message that is ready, now as started, or None if there is none."""
        while not self.is_done:
            try:
                claimed = self._ready.popleft()
            except IndexError:
                return None
            lease, now = claimed.lease, self._clock.monotonic()
            if now >= lease.deadline:  # it waited, and the process may have been frozen
                lease.lose("its deadline passed")
            if lease.state is LOST:
                self._in_flight.settle(claimed, Abandoned(lease.reason))
                continue
            lease.last_beat_at = now  # a stall counts from the start of the work
            claimed.started_at = now
            self._starts += 1
            return claimed
        return None

    def fill(self, free: int) -> bool:
        """Claim messages for `free` slots, and some ahead. Return False once closed."""
        polled = self.poll(self._compute_limit(free))
        self._ready.extend(self._arrange(polled, free))
        if self.is_done:  # it was closed meanwhile
            self._release_ready()
        return bool(polled)

    def note_finished(self, seconds: float) -> None:
        """Note how long a handler took."""
        self._handler_seconds += _NEWEST_WEIGHT * (seconds - self._handler_seconds)

    def back_off(self, error: Exception, failures: int) -> None:
        """Report a transient error and wait: longer each time, and with jitter."""
        self._events.emit(PollFailed(self._queue.name, f"{type(error).__name__}: {error}"))
        self._clock.wait(self._closed_event, _ERROR_BACKOFF.delay(failures, self._random))

    # -- polling, by one thread at a time

    def poll(self, limit: int) -> list[ClaimedMessage[M]]:
        """Claim up to `limit` messages as soon as there are any. Return none once closed.

        A run that ends by itself raises the error if the queue cannot be reached for a
        minute, because it would never see the queue empty. Any other run keeps trying.
        """
        failures = 0
        self._end.reached_at = self._clock.monotonic()
        while not self.closed:
            try:
                polled = self._claim(limit)
                failures = 0
                if polled and (self._drains or not self.closed):
                    return polled
                self._release(polled)
                if self._end.is_over():
                    self.close()
            except Exception as error:  # the disk or network is unavailable and will return
                failures += 1
                self.back_off(error, failures)
                if self._end.is_out_of_reach():
                    raise
        return []

    def _claim(self, limit: int) -> list[ClaimedMessage[M]]:
        messages = self._queue.poll(
            min(limit, self._queue.poll_batch),
            wait_seconds=self._end.poll_seconds,
            stop=self._closed_event,
        )
        leases = list(map(get_lease, messages))
        polled = list(map(ClaimedMessage, messages, leases))
        self._in_flight.claimed.update(polled)
        try:
            self._keeper.hold_all(leases)
            if self._events.has_subscribers:
                name = self._queue.name
                for lease in leases:
                    id, attempt, deadline = lease.message_id, lease.attempt, lease.deadline
                    self._events.emit(Claimed(name, id, attempt, deadline))
        except BaseException:
            # Otherwise these messages would stay claimed for a whole lease without any work.
            self._release(polled)
            raise
        return polled

    def _release(self, messages: Iterable[ClaimedMessage[M]]) -> None:
        for claimed in messages:
            self._in_flight.settle(claimed, GIVE_BACK)

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
            worth = min(ready, int(ready * self._handler_seconds / _SHARE_SECONDS))
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
        slow = sum(claimed.started_at <= since for claimed in self._in_flight.claimed.copy())
        each = max(0.0, seconds / max(self._handler_seconds, _MIN_HANDLER_SECONDS) - 1)
        return free + min(self._prefetch, int((self._slots - slow) * each))

    def _arrange(self, polled: list[ClaimedMessage[M]], free: int) -> list[ClaimedMessage[M]]:
        """Return the messages to keep, in the order in which they are to be started.

        A crash charges an attempt to every message that is claimed, started or not. A message
        that was delivered before may be the one that crashes workers. So it is started last,
        when no other message waits, and those that would wait beside it are given back.
        """
        again = [claimed for claimed in polled if claimed.lease.attempt > 1]
        self._had_redelivery = bool(again)
        if not again or len(polled) <= free:
            return polled
        first = [claimed for claimed in polled if claimed.lease.attempt == 1]
        kept = max(1, free - len(first)) if self._refunds else len(again)
        self._release(again[kept:])
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
            self._release_ready()
        else:
            next_at = min(next_at, self._release_overdue(now), self._wake_idle_slots(now))
            if self._starts != self._starts_checked:
                # Slots are busy, and each of their requests would wake this thread.
                next_at = min(next_at, now + _IDLE_SECONDS)
            self._starts_checked = self._starts
        self._upkeep_at = min(self._upkeep_at, next_at)
        return next_at

    def _release_ready(self) -> None:
        while self._ready:
            try:
                claimed = self._ready.popleft()
            except IndexError:
                return
            self._release([claimed])

    def _release_overdue(self, now: float) -> float:
        """Give back messages that have waited for too long. Return when to check again.

        If that costs an attempt, only a first delivery is given back, so that a message
        loses one attempt at most.
        """
        max_wait_seconds = 2 * self._prefetch_seconds
        overdue: list[ClaimedMessage[M]] = []
        kept: list[ClaimedMessage[M]] = []
        while self._ready:
            try:
                if now - self._ready[0].lease.claimed_at < max_wait_seconds:
                    break
                claimed = self._ready.popleft()
            except IndexError:  # a slot took it meanwhile
                break
            may_go = self._refunds or claimed.lease.attempt == 1
            (overdue if may_go else kept).append(claimed)
        self._ready.extendleft(reversed(kept))
        if overdue:
            # What was fast before says nothing any more.
            self._handler_seconds = _FIRST_HANDLER_SECONDS
            self._release(overdue)
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
