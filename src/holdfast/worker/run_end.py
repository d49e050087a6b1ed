"""The end of a run that ends by itself: with an empty queue, or one that stays unreachable."""

from typing import Generic

from holdfast.queue.message import M
from holdfast.worker.settle import InFlight

_POLL_SECONDS = 20.0  # the maximum of SQS; other queues return as soon as a message arrives
_POLL_UNTIL_EMPTY_SECONDS = 0.1
_GIVE_UP_SECONDS = 60.0  # without a response
_EMPTY_CHECK_SECONDS = 0.5  # between two calls of `stats`, which may scan the queue

# A lease that this worker gave up does not run out exactly at its deadline here, because the
# queue judges by its own clock.
_EXPIRY_MARGIN_SECONDS = 1.0


class RunEnd(Generic[M]):
    """Decides when a run `until_empty` or `until_done` is over. Any other run never is."""

    def __init__(self, in_flight: InFlight[M], *, until_empty: bool, until_done: bool) -> None:
        self._in_flight = in_flight
        self._queue, self._clock = in_flight.queue, in_flight.clock
        self._until_empty, self._until_done = until_empty or until_done, until_done
        self.poll_seconds = _POLL_UNTIL_EMPTY_SECONDS if self._until_empty else _POLL_SECONDS
        """How long one poll waits for messages."""
        self._next_check_at = 0.0
        self.reached_at = 0.0
        """When the queue last responded, or was polled first."""
        self._empty_checks = 0

    def is_out_of_reach(self) -> bool:
        """Return whether the run has waited for a response for too long.

        It goes on while work runs here, because raising the error would interrupt it.
        """
        waited_seconds = self._clock.monotonic() - self.reached_at
        return self._until_empty and waited_seconds >= _GIVE_UP_SECONDS and not self._is_working

    def is_over(self) -> bool:
        """Return whether no message is left to wait for. Call it after a poll without any."""
        if not self._until_empty:
            return False
        now = self._clock.monotonic()
        may_come_back = self._may_get_messages_back(now)
        if may_come_back and not self._can_count_given_up():
            self.reached_at = now
            return False
        if now < self._next_check_at:
            return False
        self._next_check_at = now + _EMPTY_CHECK_SECONDS
        stats = self._queue.stats()
        self.reached_at = now
        held = stats.leased if self._until_done or may_come_back else stats.expired
        is_empty = stats.ready == stats.delayed == held == 0
        self._empty_checks = self._empty_checks + 1 if is_empty else 0
        return self._empty_checks >= self._queue.min_empty_checks

    @property
    def _is_working(self) -> bool:
        return any(claimed.lease.live for claimed in self._in_flight.claimed.copy())

    def _can_count_given_up(self) -> bool:
        """Return whether `stats` shows every message that this worker gave up.

        It then need not wait for a message that was cancelled meanwhile. A message that is
        being worked on needs no `stats`, which may scan the queue.
        """
        return not self._is_working and "exact_counts" in self._queue.capabilities

    def _may_get_messages_back(self, now: float) -> bool:
        """Return whether a message is held, was put back, or was given up and still leased."""
        expired_at = now - _EXPIRY_MARGIN_SECONDS
        returns_until = max(self._queue.stats_stale_until, self._in_flight.lost_until)
        return expired_at < returns_until or any(
            claimed.lease.live or expired_at < claimed.lease.deadline
            for claimed in self._in_flight.claimed.copy()
        )
