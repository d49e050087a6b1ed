"""The worker: takes messages from a queue, has them handled, settles them.

A run's life; leases are renewed from the first line to the last:

    running ── stop() ─▶ no more polling ─▶ what was not started is given back
            ─▶ running work may finish, for drain_seconds        (stop_now(): for none)
            ─▶ the rest is ended: processes killed and coroutines cancelled, then released;
               threads told that they lost, and left to run out
            ─▶ renewing stops
"""

from collections.abc import Callable
from multiprocessing import current_process
from threading import Event, Lock, current_thread, main_thread
from typing import Generic, Literal

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError
from holdfast.core.events import Events, WorkerStarted, WorkerStopped, WorkerStopping
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import M
from holdfast.core.worker.async_runner import AsyncRunner
from holdfast.core.worker.child_process import pickled
from holdfast.core.worker.context import LeaseContext
from holdfast.core.worker.executor import DirectExecutor
from holdfast.core.worker.fetcher import Fetcher
from holdfast.core.worker.handler import Handler, handler_kind, name_of
from holdfast.core.worker.in_flight import InFlight, WorkerReport
from holdfast.core.worker.process_runner import ProcessRunner
from holdfast.core.worker.runner import Runner, ThreadRunner
from holdfast.core.worker.watchdog import Watchdog, WatchdogLimits

__all__ = ["Isolation", "Worker", "WorkerReport"]

Isolation = Literal["thread", "process", "async"]

_TICK_SECONDS = 0.1


class Worker(Generic[M]):
    """Handles the messages of one queue until stopped.

    `stall_seconds` is the longest a handler may go without `ctx.beat()`, `timeout_seconds`
    the longest it may take; `pulse_seconds` is how long a child process may not answer at
    all. Beyond them a process is killed and a coroutine cancelled, and the message is
    retried; a thread can only be told, so its message comes back when the lease runs out.
    Process isolation lives in real time: it needs the system's clock.
    """

    def __init__(
        self,
        queue: QueueManager[M],
        handler: Handler,
        *,
        concurrency: int = 1,
        isolation: Isolation = "thread",
        stall_seconds: float | None = None,
        timeout_seconds: float | None = None,
        pulse_seconds: float = 30.0,
        drain_seconds: float = 30.0,
        kill_grace_seconds: float = 2.0,
        keeper: LeaseKeeper | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
    ) -> None:
        """Raises ConfigError for what could never run."""
        _check_above_zero(concurrency=concurrency, pulse_seconds=pulse_seconds)
        _check_above_zero(stall_seconds=stall_seconds, timeout_seconds=timeout_seconds)
        self.concurrency = concurrency
        self.isolation = isolation
        self._queue = queue
        self._handler = handler
        self._pickled = _fitting(handler, isolation)
        self._limits = WatchdogLimits(
            stall_seconds, timeout_seconds, pulse_seconds, kill_grace_seconds
        )
        self._drain_seconds = drain_seconds
        self._keeper = keeper
        self._clock = clock
        self._events = queue.events if events is None else events
        self._running = Lock()
        self._wake = Event()
        self._stop_asked = False
        self._hurried = False

    def run(self, *, until_empty: bool = False) -> WorkerReport:
        """Work until stopped; with `until_empty`, until nothing is left to wait for.

        Raises HandlerNotFound when child processes cannot load the handler, ConfigError
        when the queue cannot be used at all; no message was charged for it then. A worker
        that was stopped stays stopped.
        """
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this worker is running already")
        if self._stop_asked:
            self._running.release()
            return WorkerReport(0, 0, 0, 0, 0)
        keeper = self._keeper or LeaseKeeper(self._clock, self._events)
        try:
            self._queue.check()
            if self._keeper is None:
                keeper.start()
            return self._run(keeper, until_empty)
        finally:
            # Last of all: leases must outlive the work.
            if self._keeper is None:
                keeper.stop()
            self._running.release()

    def stop(self) -> None:
        """Drain and end. From any thread, a signal handler or the work itself; repeatable."""
        self._stop_asked = True
        # In the main thread this may be a signal handler that interrupted the waiting run:
        # to set the event it waits for would deadlock. It looks often enough.
        if current_thread() is not main_thread():
            self._wake.set()

    def stop_now(self) -> None:
        """End at once: what runs is killed or cancelled, and given back where that is safe."""
        self._hurried = True
        self.stop()

    # -- one run

    def _run(self, keeper: LeaseKeeper, until_empty: bool) -> WorkerReport:
        name = self._queue.name
        ledger = InFlight(self._queue, self._events)
        feed = self._make_feed(keeper, ledger, until_empty)
        stopping = Event()
        crew = self._make_crew(feed, ledger, stopping)
        self._events.emit(WorkerStarted(name, self.concurrency, self.isolation))
        try:
            crew.start()
            while not (self._stop_asked or feed.closed):
                self._tend(crew, self._tick_seconds)
        except BaseException:  # Ctrl-C where nobody handles signals
            self._hurried = True
            raise
        finally:
            self._shut_down(crew, feed, ledger, stopping)
            report = ledger.report()
            self._events.emit(WorkerStopped(name, report.abandoned))
        if crew.error is not None:
            raise crew.error
        return report

    def _shut_down(
        self, crew: Runner, feed: Fetcher[M], ledger: InFlight[M], stopping: Event
    ) -> None:
        stopping.set()
        feed.close()
        running = sum(lease.live for lease in ledger.open())
        self._events.emit(WorkerStopping(self._queue.name, running))
        until = self._clock.monotonic() + self._drain_seconds
        while crew.unfinished() and not self._hurried and self._clock.monotonic() < until:
            self._tend(crew, 0.02)
        ledger.give_up.set()
        crew.cancel_running()
        crew.join(self._limits.kill_grace_seconds + crew.exit_timeout_seconds)

    def _tend(self, crew: Runner, seconds: float) -> None:
        self._clock.wait(self._wake, seconds)
        self._wake.clear()
        crew.watch(self._clock.monotonic())

    @property
    def _tick_seconds(self) -> float:
        return min(_TICK_SECONDS, self._limits.tick_seconds(self._queue.lease_seconds))

    # -- the parts of a run

    def _make_feed(
        self, keeper: LeaseKeeper, ledger: InFlight[M], until_empty: bool
    ) -> Fetcher[M]:
        # Only a thread's stall is the keeper's business: it gives up the lease, while a
        # process or coroutine has to be ended before its message may go to anybody else.
        stall_seconds = self._limits.stall_seconds if self.isolation == "thread" else None
        return Fetcher(
            self._queue,
            keeper,
            ledger,
            self._clock,
            self._events,
            slots=self.concurrency,
            stall_seconds=stall_seconds,
            until_empty=until_empty,
        )

    def _make_crew(self, feed: Fetcher[M], ledger: InFlight[M], stopping: Event) -> Runner:
        def context(message: M, lease: Lease) -> LeaseContext:
            return LeaseContext(self._queue, message, lease, stopping, self._clock)

        cancel_running = Event()
        count, clock = self.concurrency, self._clock
        match self.isolation:
            case "thread":
                return ThreadRunner(
                    count,
                    lambda: DirectExecutor(self._handler, context),
                    feed,
                    ledger,
                    clock,
                    timeout_seconds=self._limits.timeout_seconds,
                )
            case "process":
                return ProcessRunner(
                    count,
                    lambda: self._make_watchdog(context, stopping, cancel_running),
                    feed,
                    ledger,
                    clock,
                    cancel_running=cancel_running,
                )
            case "async":
                return AsyncRunner(
                    count, self._handler, context, feed, ledger, self._limits, clock
                )

    def _make_watchdog(
        self,
        context: Callable[[M, Lease], LeaseContext],
        stopping: Event,
        cancel_running: Event,
    ) -> Watchdog[M]:
        return Watchdog(
            self._pickled,
            self._limits,
            context,
            queue_name=self._queue.name,
            lease_seconds=self._queue.lease_seconds,
            stopping=stopping,
            cancel_running=cancel_running,
            clock=self._clock,
            events=self._events,
        )


def _fitting(handler: Handler, isolation: str) -> bytes:
    """Check that the handler can run that way; as bytes, where it has to travel."""
    shape = handler_kind(handler)
    match isolation:
        case "thread":
            return b""
        case "process" if current_process().daemon:
            raise ConfigError("isolation 'process' cannot work inside a daemonic process")
        case "process":
            return pickled(handler)
        case "async" if shape.is_async:
            return b""
        case "async":
            raise ConfigError(
                f"{name_of(handler)} is no `async def`, and would block the event loop: use "
                "isolation 'thread' or 'process'"
            )
        case _:
            raise ConfigError(f"isolation is thread, process or async, not {isolation!r}")


def _check_above_zero(**settings: float | None) -> None:
    for name, value in settings.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be above 0, not {value}")
