"""Runners do the work of one run.

A slot runner has N slots, each with a thread that handles one message at a time, with an
executor of its own.
"""

from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, Protocol

from holdfast.errors import HandlerNotFound
from holdfast.lease.lease import Lease, LeaseState
from holdfast.process.liveness import LivenessLimits
from holdfast.queue.message import M
from holdfast.worker.context import Executor, execute_attempt
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.in_flight import ClaimedMessage, InFlight
from holdfast.worker.outcome import GIVE_BACK, Outcome


class Runner(Protocol):
    """Fetches, handles and settles messages during one run of a worker."""

    error: BaseException | None
    """The error that made the run impossible. The fetcher is closed in that case."""

    exit_timeout_seconds: float
    """How long running work may take to end after the kill grace."""

    def start(self) -> None:
        """Start to fetch and handle messages."""

    def watch(self, now: float) -> float:
        """Enforce the limits of running work.

        Returns the seconds until this must be called again, at most. Infinity means that
        there is nothing to enforce.
        """

    def count_unfinished(self) -> int:
        """Return how many slots must finish before the worker may stop."""

    def cancel_running(self) -> None:
        """End all running work unfinished, because the drain time is over."""

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` until all slots have ended."""


FindLimits = Callable[[M], LivenessLimits | None]
"""Returns the limits of a message that runs in the thread of its slot, or else None."""


class SlotRunner(Generic[M]):
    """N slots, each with a thread and its own executor.

    A handler that runs in the thread of its slot can be asked to stop but not forced. So if it
    breaks a limit, its lease is given up. The watchdog of a child process enforces its limits
    itself. `strictest` are the shortest limits that `find_limits` returns.
    """

    def __init__(
        self,
        count: int,
        make_executor: Callable[[], Executor[M]],
        fetcher: Fetcher[M],
        in_flight: InFlight[M],
        *,
        find_limits: FindLimits[M],
        strictest: LivenessLimits = LivenessLimits(),  # noqa: B008  # frozen
        exit_timeout_seconds: float = 0.0,
    ) -> None:
        self.error: BaseException | None = None
        self.exit_timeout_seconds = exit_timeout_seconds
        self._make_executor = make_executor
        self._fetcher = fetcher
        self._in_flight = in_flight
        self._clock = in_flight.clock
        self._find_limits = find_limits
        self._strictest = strictest
        self._all_started = Event()
        # Daemon threads, so that a handler that never returns does not block the exit.
        self._threads = [
            Thread(target=self._run, name=f"holdfast-slot-{number + 1}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        """Start every slot.

        No slot claims a message before all of them have a thread. Otherwise, if one thread
        could not start, messages that others had claimed would be interrupted.
        """
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            self._fetcher.close()
            raise
        finally:
            self._all_started.set()

    def count_unfinished(self) -> int:
        """Return how many slots must finish. A slot whose lease is lost may never finish."""
        alive = sum(thread.is_alive() for thread in self._threads)
        started = self._in_flight.get_started()
        lost = sum(claimed.lease.state is LeaseState.LOST for claimed in started)
        return max(0, alive - lost)

    def watch(self, now: float) -> float:
        """Give up the leases of threads whose work stalls or takes too long."""
        next_seconds = self._strictest.compute_seconds_left(now, now, now)  # for a new message
        for lease, started_at, limits in self._list_in_threads():
            beat_at = lease.last_beat_at
            if (reason := limits.find_missing(now, started_at, beat_at)) is not None:
                lease.lose(reason)
            elif lease.live:
                left_seconds = limits.compute_seconds_left(now, started_at, beat_at)
                next_seconds = min(next_seconds, left_seconds)
        return next_seconds

    def cancel_running(self) -> None:
        """Give up the leases of threads, so that their messages come back when they end.

        Every watchdog ends its child by itself when the run gives up.
        """
        # Do not release the messages, because the threads may still be working on them.
        for lease, *_ in self._list_in_threads():
            lease.lose("the worker stopped before the work was done")

    def _list_in_threads(self) -> list[tuple[Lease, float, LivenessLimits]]:
        return [
            (claimed.lease, claimed.started_at, limits)
            for claimed in self._in_flight.get_started()
            if (limits := self._find_limits(claimed.message)) is not None
        ]

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` until all threads have ended."""
        until = self._clock.monotonic() + seconds
        for thread in filter(Thread.is_alive, self._threads):
            thread.join(max(0.0, until - self._clock.monotonic()))

    # -- in the thread of a slot

    def _run(self) -> None:
        self._all_started.wait()
        try:
            executor = self._make_executor()
            try:
                self._work(executor)
            finally:
                executor.close()
        # A slot must not end silently. Its error ends the run, which raises it.
        except BaseException as error:
            self.error = self.error or error
            self._fetcher.close()

    def _work(self, executor: Executor[M]) -> None:
        failures = 0
        while not self._fetcher.is_done:
            try:
                if not executor.prepare():
                    return
                failures = 0
            except OSError as error:
                failures += 1
                self._fetcher.back_off(error, failures)
                continue
            claimed = self._fetcher.fetch()
            if claimed is not None:
                self._handle(executor, claimed)

    def _handle(self, executor: Executor[M], claimed: ClaimedMessage[M]) -> None:
        in_flight = self._in_flight
        outcome: Outcome = GIVE_BACK
        try:
            # Checked after the start, or it could start unnoticed after `cancel_running`.
            if not in_flight.give_up.is_set():
                message, lease = claimed.message, claimed.lease
                outcome = execute_attempt(in_flight.queue, executor, message, lease)
        except OSError:
            pass  # the handler was not started, and `prepare` will report the error
        except HandlerNotFound:
            raise
        except BaseException as error:
            # It is unknown how far the work came, so let the lease run out unsettled.
            claimed.lease.lose(f"the worker failed: {type(error).__name__}: {error}")
            raise
        finally:
            claimed.seconds = self._clock.monotonic() - claimed.started_at
            self._fetcher.note_finished(claimed.seconds)
            in_flight.settle(claimed, outcome)
            # Its exception refers to this frame. Without this line, the message would stay in
            # memory until the garbage collector finds the cycle.
            del outcome
