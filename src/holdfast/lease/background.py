"""One way to run a loop in a background thread: start it, wake it, stop it, restart it.

    start ──▶ tick ──▶ sleep until the time that tick returned, or until woken ─┐
                ▲                                                               │
                └───────────────────── unless stopped ◀─────────────────────────┘

The thread obeys a stop between passes. `stop` waits until the thread has acknowledged it, not
until the thread has ended: a start that comes meanwhile keeps the same thread, so there are
never two.
"""

import logging
from collections.abc import Callable
from math import inf
from threading import Condition, Event, Thread, current_thread

from holdfast.lease import after_fork
from holdfast.lease.clock import Clock

_log = logging.getLogger("holdfast")

_RETRY_SECONDS = 0.1  # after a pass that raised an error


class BackgroundLoop:
    """Calls `tick` in a daemon thread, each time at the time that the last call returned.

    `tick` runs one pass and returns the monotonic time of the next one. Infinity means that
    no pass is needed until the loop is woken. An Exception of a pass is logged, and the loop
    goes on, because a bug in one pass must not end the work of all later ones. Any other
    exception ends the thread.

    `start`, `stop` and `wake` may be called from any thread, any number of times, and from
    `tick` itself. A wait does not count the time in which the machine is suspended, but the
    clock does, so a loop that must notice this checks the clock every `max_wait_seconds`.
    The thread runs `target` if it is given, which must call `run`. A loop that also waits for
    something else replaces `wait`, which must return soon after its event is set.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[], float],
        clock: Clock,
        *,
        max_wait_seconds: float = inf,
        target: Callable[[], None] | None = None,
        wait: Callable[[Event, float | None], object] | None = None,
    ) -> None:
        self._name = name
        self._tick = tick
        self._clock = clock
        self._max_wait_seconds = max_wait_seconds
        self._target = target or self.run
        self._wait = wait or clock.wait
        self._reset()
        # A forked child has none of its parent's threads, but it may inherit a lock that one
        # of them held. So its loops are reset, and do not run.
        after_fork.run_after_fork(self, BackgroundLoop._reset)

    def _reset(self) -> None:
        self.stop_event = Event()
        """Set by a stop and cleared by a start."""
        self._wake = Event()
        self.wake: Callable[[], None] = self._wake.set
        """Run the next pass now. Any thread may call this, and `tick` itself."""
        self._changed = Condition()
        self._thread: Thread | None = None
        self._ended: Thread | None = None  # it may still run its last instructions
        self._stops = 0
        self._stops_obeyed = 0

    # -- from any thread

    @property
    def running(self) -> bool:
        """Whether the loop was started and not stopped."""
        return self._thread is not None and not self.stop_event.is_set()

    @property
    def thread(self) -> Thread | None:
        """The thread that runs, or else the one that ended last."""
        return self._thread or self._ended

    def start(self) -> None:
        """Start the thread. Does nothing if the loop runs already.

        Raises RuntimeError, and does not claim to run, if no thread is available.
        """
        with self._changed:
            self.stop_event.clear()
            if self._thread is not None:
                return
            if self._ended is not None:
                self._ended.join()
            self._thread = Thread(target=self._target, name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._thread = None
                raise

    def request_stop(self) -> None:
        """Begin no further pass. This does not wait for the one in progress."""
        with self._changed:
            self._stops += 1
            self.stop_event.set()
            self._wake.set()

    def stop(self, wait_seconds: float | None = None) -> bool:
        """Begin no further pass, and wait for the one in progress, at most `wait_seconds`.

        Returns whether no pass is in progress any more. In the loop's own thread this does
        not wait and returns False.
        """
        with self._changed:
            self.request_stop()
            stops, thread = self._stops, self._thread
            if thread is current_thread():
                return False
            obeyed = thread is None or self._changed.wait_for(
                lambda: self._thread is not thread or self._stops_obeyed >= stops, wait_seconds
            )
            ended = self._ended
        if ended is not None and ended is not current_thread():
            ended.join(wait_seconds)
        return obeyed

    # -- in the loop's thread

    def run(self) -> None:
        """Run passes until stopped. Only the loop's own thread may call this."""
        try:
            while self._continues():
                self._sleep(self._run_pass())
        except BaseException:
            self._end_thread()
            raise

    def is_stop_pending(self) -> bool:
        """Return whether the pass in progress should end early, because of a stop."""
        return self._stops > self._stops_obeyed or self._thread is not current_thread()

    def _run_pass(self) -> float:
        try:
            return self._tick()
        except Exception:
            _log.exception("a pass of %s failed; the next one follows", self._name)
            return self._clock.monotonic() + _RETRY_SECONDS

    def _sleep(self, until: float) -> None:
        seconds = min(until - self._clock.monotonic(), self._max_wait_seconds)
        self._wait(self._wake, None if seconds == inf else max(0.0, seconds))

    def _continues(self) -> bool:
        """Acknowledge stops, and return whether this thread should run another pass."""
        with self._changed:
            # The wake is cleared before the pass, so a change that comes during the pass
            # wakes the loop again.
            self._wake.clear()
            self._stops_obeyed = self._stops
            self._changed.notify_all()
            if self.stop_event.is_set():
                self._end_thread()
            return self._thread is current_thread()

    def _end_thread(self) -> None:
        """Mark this thread as ended. Afterwards it touches no shared state."""
        with self._changed:
            if self._thread is current_thread():
                # In this order, because `thread` reads them in the opposite one without a lock.
                self._ended = current_thread()
                self._thread = None
                self._changed.notify_all()
