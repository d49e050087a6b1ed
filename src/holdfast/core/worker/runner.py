"""A crew of threads: N slots that each take, execute and settle, one message at a time."""

from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, Protocol

from holdfast.core.clock import Clock
from holdfast.core.errors import HandlerNotFound
from holdfast.core.lease.lease import LeaseState
from holdfast.core.queue.message import M, lease_of
from holdfast.core.worker.executor import Executor
from holdfast.core.worker.fetcher import Fetcher
from holdfast.core.worker.in_flight import InFlight
from holdfast.core.worker.outcome import GiveBack, Outcome


class Runner(Protocol):
    """Those who do the work of one run."""

    error: BaseException | None
    """What made the run impossible; the feed is closed then."""

    exit_timeout_seconds: float
    """How long ending can take once the grace is over."""

    def start(self) -> None: ...

    def watch(self, now: float) -> None:
        """Look after the running work; called every moment by the worker."""

    def unfinished(self) -> int:
        """How many slots have something to end before the worker may."""

    def cancel_running(self) -> None:
        """Drain time is over: whatever runs now must end without having been finished."""

    def join(self, seconds: float) -> None:
        """Wait that long, at most, for all to be gone."""


class SlotRunner(Generic[M]):
    """Threads, each with an executor of its own."""

    exit_timeout_seconds = 0.0

    def __init__(
        self,
        count: int,
        make_executor: Callable[[], Executor[M]],
        feed: Fetcher[M],
        ledger: InFlight[M],
        clock: Clock,
    ) -> None:
        self.error: BaseException | None = None
        self._make_executor = make_executor
        self._feed = feed
        self._ledger = ledger
        self._clock = clock
        self._all_started = Event()
        # Daemons: a handler that never returns must not keep the process from ending.
        self._threads = [
            Thread(target=self._run, name=f"holdfast-slot-{number + 1}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        """Start every slot. Nothing is claimed before all of them have a thread: if one
        cannot start, what the others claimed would be cut off in the middle."""
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            self._feed.close()
            raise
        finally:
            self._all_started.set()

    def unfinished(self) -> int:
        alive = sum(thread.is_alive() for thread in self._threads)
        lost = sum(lease.state is LeaseState.LOST for lease in self._ledger.open())
        return max(0, alive - lost)  # who lost its lease may never end

    def join(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        for thread in filter(Thread.is_alive, self._threads):
            thread.join(max(0.0, until - self._clock.monotonic()))

    # -- in the thread

    def _run(self) -> None:
        self._all_started.wait()
        try:
            executor = self._make_executor()
            try:
                self._work(executor)
            finally:
                executor.close()
        # A slot that ends unheard would be missed by nobody: the run ends, and says why.
        except BaseException as error:
            self.error = self.error or error
            self._feed.close()

    def _work(self, executor: Executor[M]) -> None:
        failures = 0
        while not self._feed.closed:
            try:
                if not executor.prepare():
                    return
                failures = 0
            except OSError as error:
                failures += 1
                self._feed.rest(error, failures)
                continue
            message = self._feed.take()
            if message is not None:
                self._handle(executor, message)

    def _handle(self, executor: Executor[M], message: M) -> None:
        lease = lease_of(message)
        started = self._clock.monotonic()
        outcome: Outcome = GiveBack()
        try:
            outcome = executor.execute(message, lease)
        except OSError:
            pass  # it was not started; `prepare` will find out more
        except HandlerNotFound:
            raise
        except BaseException as error:
            # Nobody knows how far it came: let it run out rather than settle it.
            lease.lose(f"the worker failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._ledger.settle(message, outcome, self._clock.monotonic() - started)


class ThreadRunner(SlotRunner[M]):
    """Handlers run in the slots' own threads, and can be told to stop, not made to."""

    def __init__(
        self,
        count: int,
        make_executor: Callable[[], Executor[M]],
        feed: Fetcher[M],
        ledger: InFlight[M],
        clock: Clock,
        *,
        timeout_seconds: float | None,
    ) -> None:
        super().__init__(count, make_executor, feed, ledger, clock)
        self._timeout_seconds = timeout_seconds

    def watch(self, now: float) -> None:
        """Give up what takes too long. (The keeper gives up what stalls.)"""
        if self._timeout_seconds is None:
            return
        for lease in self._ledger.open():
            if now - lease.claimed_at >= self._timeout_seconds:
                lease.lose(f"timed out after {self._timeout_seconds:g} s")

    def cancel_running(self) -> None:
        # Not released: the thread may still be at it. It comes back when the lease is over.
        for lease in self._ledger.open():
            lease.lose("the worker stopped before the work was done")
