"""Clocks for tests: one that stands still until a test moves it, and one that skips waits."""

from threading import Event, Lock

from holdfast.lease.clock import SYSTEM_CLOCK

_CHECK_SECONDS = 0.001  # real time between two checks of a waiting thread
_ROUNDING_SECONDS = 0.001 + 1e-6  # 1e-6, because a sum of floats may be a little less


class ManualClock:
    """A clock that a test controls. Threads may share it.

    Threads that wait or sleep on it continue when `advance` has moved it far enough. In a
    test with one thread, no other thread could move it, so with `auto_advance` each wait and
    sleep moves the clock and returns at once. (Do not combine `auto_advance` with a thread
    that waits in a loop, such as a started keeper, because that loop would make time race.)
    """

    def __init__(
        self,
        monotonic: float = 1_000.0,
        *,
        time: float = 1_800_000_000.0,
        auto_advance: bool = False,
    ) -> None:
        self.auto_advance = auto_advance
        self._monotonic = monotonic
        self._time = time
        self._waits: list[float] = []  # the end of each wait
        self._lock = Lock()

    def time(self) -> float:
        """Return the wall time in epoch seconds."""
        return self._time

    def monotonic(self) -> float:
        """Return the monotonic time in seconds."""
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass in one step, and wake the threads whose wait is over."""
        if not seconds >= 0:
            raise ValueError(f"time cannot move by {seconds} seconds")
        with self._lock:
            self._monotonic += seconds
            self._time += seconds

    def step_time(self, seconds: float) -> None:
        """Move the wall clock forward or back, as NTP or an administrator might."""
        with self._lock:
            self._time += seconds

    @property
    def waiting(self) -> int:
        """The number of threads that still wait or sleep."""
        with self._lock:
            return sum(until > self._monotonic for until in self._waits)

    def wait(self, event: Event, seconds: float | None) -> bool:
        """Wait as Clock.wait does. A wait without a limit needs another thread to end it."""
        if self.auto_advance and seconds is not None:
            if not event.is_set():
                self.advance(max(0.0, seconds))
            return event.is_set()
        return self._wait(event, float("inf") if seconds is None else seconds)

    def sleep(self, seconds: float) -> None:
        """Sleep until the clock has moved by `seconds`."""
        if self.auto_advance:
            self.advance(seconds)
        else:
            self._wait(Event(), seconds)

    def _wait(self, event: Event, seconds: float) -> bool:
        with self._lock:
            until = self._monotonic + seconds
            self._waits.append(until)
        try:
            # Any thread may set the event without notifying this clock, so check often.
            while self._monotonic < until and not event.wait(_CHECK_SECONDS):
                pass
            return event.is_set()
        finally:
            with self._lock:
                self._waits.remove(until)


class SkippingClock:
    """A clock that runs in real time, but skips the time until the next message is due.

    A MemoryQueue with this clock skips when a worker waits for a message and none is being
    worked on. So retries, delays and leases that run out take no real time, and the limits of
    a running handler count as usual. Threads may share it.
    """

    def __init__(self) -> None:
        self._skipped_seconds = 0.0
        self._lock = Lock()

    def time(self) -> float:
        """Return the wall time in epoch seconds."""
        return SYSTEM_CLOCK.time() + self._skipped_seconds

    def monotonic(self) -> float:
        """Return the monotonic time in seconds."""
        return SYSTEM_CLOCK.monotonic() + self._skipped_seconds

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass in one step. This does not wake a thread that waits.

        A millisecond more passes, because queues count whole milliseconds and round the end
        of a lease up: after `advance(queue.lease_seconds)` the lease has ended.
        """
        if not seconds >= 0:
            raise ValueError(f"time cannot move by {seconds} seconds")
        # A little more, because queues count whole milliseconds and round up when a lease ends.
        with self._lock:
            self._skipped_seconds += seconds + _ROUNDING_SECONDS

    def skip_to(self, at: float) -> None:
        """Move to the monotonic time `at`, unless it is over already."""
        with self._lock:
            left_seconds = at - self.monotonic()
            if left_seconds > 0:
                # A little more, because a sum of floats may be a little less than `at`.
                self._skipped_seconds += left_seconds + 1e-6

    def wait(self, event: Event, seconds: float | None) -> bool:
        """Wait in real time, as Clock.wait does."""
        return SYSTEM_CLOCK.wait(event, seconds)

    def sleep(self, seconds: float) -> None:
        """Sleep in real time, as Clock.sleep does."""
        SYSTEM_CLOCK.sleep(seconds)
