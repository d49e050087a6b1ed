"""A clock that stands still until the test moves it."""

from threading import Event, Lock

_GLANCE_SECONDS = 0.001  # real time between two looks of a waiting thread


class ManualClock:
    """Time under the test's control. Safe to share between threads.

    Threads that wait or sleep on it go on when `advance` has moved it far enough. In a
    test with one thread nobody else could move it: with `auto_advance` each wait and
    sleep moves it itself, and returns at once. (Not beside a thread that waits in a loop,
    such as a started keeper: that loop would make time race.)
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
        self._waits: list[float] = []  # until when, for each that waits
        self._lock = Lock()

    def time(self) -> float:
        return self._time

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, in one leap, and wake those whose time has come."""
        if not seconds >= 0:
            raise ValueError(f"time cannot move by {seconds} seconds")
        with self._lock:
            self._monotonic += seconds
            self._time += seconds

    def step_time(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP or a person might."""
        with self._lock:
            self._time += seconds

    @property
    def waiting(self) -> int:
        """How many threads wait or sleep on for longer: 0 means all are about."""
        with self._lock:
            return sum(until > self._monotonic for until in self._waits)

    def wait(self, event: Event, seconds: float | None) -> bool:
        """As Clock.wait. Waiting for ever needs another thread, whatever the mode."""
        if self.auto_advance and seconds is not None:
            if not event.is_set():
                self.advance(max(0.0, seconds))
            return event.is_set()
        return self._wait(event, float("inf") if seconds is None else seconds)

    def sleep(self, seconds: float) -> None:
        if self.auto_advance:
            self.advance(seconds)
        else:
            self._wait(Event(), seconds)

    def _wait(self, event: Event, seconds: float) -> bool:
        with self._lock:
            until = self._monotonic + seconds
            self._waits.append(until)
        try:
            # The event may be set by anybody and cannot tell this clock, so look often.
            while self._monotonic < until and not event.wait(_GLANCE_SECONDS):
                pass
            return event.is_set()
        finally:
            with self._lock:
                self._waits.remove(until)
