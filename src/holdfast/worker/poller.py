"""The poller: it claims messages, has their leases renewed, and ends a run that is done."""

from collections.abc import Callable, Iterable
from random import Random
from threading import Event
from typing import Generic

from holdfast.events import Claimed, PollFailed
from holdfast.lease.backoff import Backoff
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.message import M, get_lease
from holdfast.worker.outcome import GIVE_BACK
from holdfast.worker.settle import InFlight

_ERROR_BACKOFF = Backoff(first_seconds=0.1, factor=2.0, max_seconds=10.0)

_POLL_SECONDS = 20.0  # the maximum of SQS; other queues return as soon as a message arrives
_POLL_UNTIL_EMPTY_SECONDS = 0.1
_GIVE_UP_SECONDS = 60.0  # without a response, if the run ends when the queue is empty
_EMPTY_CHECK_SECONDS = 0.5  # between two calls of `stats`, which may scan the queue

# A lease that this worker gave up does not run out exactly at its deadline here, because the
# queue judges by its own clock.
_EXPIRY_MARGIN_SECONDS = 1.0


class Poller(Generic[M]):
    """Claims messages until closed. One thread polls at a time; any thread may close it."""

    def __init__(
        self,
        keeper: LeaseKeeper,
        in_flight: InFlight[M],
        *,
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
        self._until_empty, self._until_done = until_empty or until_done, until_done
        self._closed_event = Event()
        self._on_close = on_close
        self._next_empty_check_at = 0.0
        self._reached_at = 0.0  # when the queue last responded, if the run ends by itself
        self._empty_checks = 0
        self._random = Random()

    def close(self) -> None:
        """Stop claiming. What a poll in progress still claims is given back or drained."""
        self.closed = True
        self._closed_event.set()
        self._on_close()

    def poll(self, limit: int) -> list[M]:
        """Claim up to `limit` messages as soon as there are any. Return none once closed.

        A run that ends by itself raises the error if the queue cannot be reached for a
        minute, because it would never see the queue empty. Any other run keeps trying.
        """
        failures, self._reached_at = 0, self._clock.monotonic()
        while not self.closed:
            try:
                polled = self._poll(limit)
                failures = 0
                if polled and (self._drains or not self.closed):
                    return polled
                self._give_back(polled)
                self._close_if_empty()
            except Exception as error:  # the disk or network is unavailable and will return
                failures += 1
                self.back_off(error, failures)
                if self._should_give_up():
                    raise
        return []

    @property
    def _drains(self) -> bool:
        """Whether messages that were claimed before the close are started after it."""
        return False

    def _should_give_up(self) -> bool:
        """Return whether a run that ends by itself has waited for the queue for too long.

        It goes on while work runs here, because raising the error would interrupt it.
        """
        waited_seconds = self._clock.monotonic() - self._reached_at
        return (
            self._until_empty
            and waited_seconds >= _GIVE_UP_SECONDS
            and not any(lease.live for lease in self._in_flight.get_leases())
        )

    def back_off(self, error: Exception, failures: int) -> None:
        """Report a transient error and wait: longer each time, and with jitter."""
        self._events.emit(PollFailed(self._queue.name, f"{type(error).__name__}: {error}"))
        self._clock.wait(self._closed_event, _ERROR_BACKOFF.delay(failures, self._random))

    # -- steps of a poll

    def _poll(self, limit: int) -> list[M]:
        seconds = _POLL_UNTIL_EMPTY_SECONDS if self._until_empty else _POLL_SECONDS
        polled = self._queue.poll(
            min(limit, self._queue.poll_batch), wait_seconds=seconds, stop=self._closed_event
        )
        leases = [get_lease(message) for message in polled]
        self._in_flight.add(leases)
        try:
            self._keeper.hold_all(leases)
            if self._events.has_subscribers:
                name = self._queue.name
                for lease in leases:
                    id, attempt, deadline = lease.message_id, lease.attempt, lease.deadline
                    self._events.emit(Claimed(name, id, attempt, deadline))
        except BaseException:
            # Otherwise these messages would stay claimed for a whole lease without any work.
            self._give_back(polled)
            raise
        return polled

    def _give_back(self, messages: Iterable[M]) -> None:
        for message in messages:
            self._in_flight.settle(message, GIVE_BACK)

    def _close_if_empty(self) -> None:
        now = self._clock.monotonic()
        may_come_back = self._until_empty and self._may_get_messages_back(now)
        is_certain = not may_come_back or self._can_count_given_up()
        if not (self._until_empty and is_certain):
            self._reached_at = now
            return
        if now < self._next_empty_check_at:
            return
        self._next_empty_check_at = now + _EMPTY_CHECK_SECONDS
        stats = self._queue.stats()
        self._reached_at = now
        held = stats.leased if self._until_done or may_come_back else stats.expired
        is_empty = stats.ready == stats.delayed == held == 0
        self._empty_checks = self._empty_checks + 1 if is_empty else 0
        if self._empty_checks >= self._queue.min_empty_checks:
            self.close()

    def _can_count_given_up(self) -> bool:
        """Return whether `stats` shows every message that this worker gave up.

        It then need not wait for a message that was cancelled meanwhile. A message that is
        being worked on needs no `stats`, which may scan the queue.
        """
        is_working = any(lease.live for lease in self._in_flight.get_leases())
        return not is_working and "exact_counts" in self._queue.capabilities

    def _may_get_messages_back(self, now: float) -> bool:
        """Return whether a message is held, was put back, or was given up and still leased."""
        expired_at = now - _EXPIRY_MARGIN_SECONDS
        returns_until = max(self._queue.stats_stale_until, self._in_flight.lost_until)
        return expired_at < returns_until or any(
            lease.live or expired_at < lease.deadline for lease in self._in_flight.get_leases()
        )
