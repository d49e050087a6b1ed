"""The worker: it claims messages from a queue, runs the handler, and settles them.

The phases of a run. Leases are renewed during all of them:

    running ── stop() ─▶ polling stops ─▶ unstarted messages are given back
            ─▶ running work may finish within drain_seconds      (stop_now(): 0 seconds)
            ─▶ the rest is ended: processes are killed and coroutines cancelled, and their
               messages given back; a thread is notified and its lease left to run out
            ─▶ renewing stops
"""

from collections.abc import Awaitable, Callable
from math import inf
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import Generic, Literal

from holdfast.errors import ConfigError
from holdfast.events import (
    Events,
    OnError,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
    add_error_callback,
)
from holdfast.lease.clock import Clock
from holdfast.lease.keeper import LeaseKeeper
from holdfast.process.liveness import LivenessLimits
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import M
from holdfast.worker.async_runner import AsyncRunner
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.handler import (
    Handler,
    Result,
    check_message_type,
    get_handler_name,
    inspect_handler,
)
from holdfast.worker.runner import Context, DirectExecutor, SlotRunner
from holdfast.worker.settle import InFlight, WorkerReport
from holdfast.worker.watchdog import EXIT_TIMEOUT_SECONDS, Watchdog, pickle_handler

__all__ = ["Isolation", "Prefetch", "Worker", "WorkerReport"]

Isolation = Literal["thread", "process", "async"]
Prefetch = int | Literal["auto"]
MessageHandler = (
    Callable[[M, Context], Result | Awaitable[Result]]
    | Callable[[M], Result | Awaitable[Result]]
)
"""A handler of the messages of one queue, for type checkers."""
Runner = SlotRunner[M] | AsyncRunner[M]


class SignalSafeEvent(Event):
    """An event that a signal handler may set while the thread that it interrupts waits for it.

    `Event.set` takes a lock that the interrupted thread may hold, so it could deadlock. The
    `put` of a SimpleQueue may interrupt any other call of the same queue.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tokens: SimpleQueue[None] = SimpleQueue()

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return not self._tokens.empty()

    def set(self) -> None:
        """Set the event, and wake the thread that waits for it."""
        self._tokens.put(None)

    def clear(self) -> None:
        """Unset the event."""
        while self.is_set():
            self._tokens.get()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set. Only one thread may wait and clear."""
        try:
            self._tokens.get(timeout=timeout)
        except Empty:
            return False
        self._tokens.put(None)
        return True


class Worker(Generic[M]):
    """Handles the messages of one queue until stopped.

    A handler may run `stall_seconds` without a `ctx.beat()`, and `timeout_seconds` in all. A
    child process may be unresponsive for `pulse_seconds`. Beyond these limits a process is
    killed or a coroutine cancelled, and the message is retried. A thread can only be
    notified, so its message comes back when the lease runs out.

    `prefetch` is how many messages may be claimed before a slot can start them. It is never
    more than the recent handlers finish within about a second, so slow handlers claim
    nothing ahead. "auto" allows as many as one poll brings, and 0 none.

    Without `events`, those of the queue are used, which log to the logger `holdfast` unless
    the queue was given others. `on_error` is called after each attempt that failed with an
    exception, in the thread that settled it. An exception of `on_error` itself is logged.

    The clock is the queue's. Process isolation works in real time, so it needs a clock that
    runs as the system's does.
    """

    def __init__(
        self,
        queue: QueueManager[M],
        handler: MessageHandler[M],
        *,
        concurrency: int = 1,
        isolation: Isolation = "thread",
        prefetch: Prefetch = "auto",
        stall_seconds: float | None = None,
        timeout_seconds: float | None = None,
        pulse_seconds: float = 30.0,
        drain_seconds: float = 30.0,
        kill_grace_seconds: float = 2.0,
        keeper: LeaseKeeper | None = None,
        clock: Clock | None = None,
        events: Events | None = None,
        on_error: OnError | None = None,
    ) -> None:
        """Check the settings. Raises ConfigError if they could never work."""
        _check_above_zero(concurrency=concurrency, pulse_seconds=pulse_seconds)
        _check_above_zero(stall_seconds=stall_seconds, timeout_seconds=timeout_seconds)
        self.concurrency = concurrency
        self.isolation = isolation
        self.prefetch = _limit_prefetch(prefetch, queue)
        self._queue = queue
        self._handler = handler
        self._pickled_handler = _check_handler(handler, isolation)
        check_message_type(handler, queue.model)
        self._limits = LivenessLimits(
            stall_seconds, timeout_seconds, pulse_seconds, kill_grace_seconds
        )
        self._drain_seconds = drain_seconds
        self._keeper = keeper
        self._clock = clock or queue.clock
        self._events = add_error_callback(queue.events if events is None else events, on_error)
        self._running = Lock()
        self._wake = SignalSafeEvent()
        self._stop_requested = False
        self._stop_now_at = inf

    def run(self, *, until_empty: bool = False, until_done: bool = False) -> WorkerReport:
        """Handle messages until stopped, or until none is left.

        With `until_empty`, messages that other workers hold are not waited for; with
        `until_done` they are. In both cases the error is raised if the queue cannot be
        reached for a minute. Raises HandlerNotFound if child processes cannot load the
        handler, and ConfigError if the queue can never be used. In these two cases no
        message was charged an attempt. A worker that was stopped cannot run again.
        """
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this worker is running already")
        if self._stop_requested:
            self._running.release()
            return WorkerReport(0, 0, 0, 0, 0)
        keeper = self._keeper or LeaseKeeper(self._clock, self._events)
        try:
            self._queue.check()
            if self._keeper is None:
                keeper.start()
            return self._run(keeper, until_empty, until_done)
        finally:
            # Stop the keeper last, because leases must outlive the work.
            if self._keeper is None:
                keeper.stop()
            self._running.release()

    def stop(self) -> None:
        """Finish running work, then end the run.

        Any thread, a signal handler or the handler itself may call this, also repeatedly.
        """
        self._stop_requested = True
        self._wake.set()

    def stop_now(self, after_seconds: float = 0.0) -> None:
        """End the run at once: kill or cancel the work, and give it back where that is safe.

        Handlers that were told to end by themselves have `after_seconds` for it.
        """
        self._stop_now_at = self._clock.monotonic() + after_seconds
        self.stop()

    # -- one run

    def _run(self, keeper: LeaseKeeper, until_empty: bool, until_done: bool) -> WorkerReport:
        name = self._queue.name
        in_flight = InFlight(self._queue, self._events, self._clock)
        fetcher = Fetcher(
            keeper,
            in_flight,
            slots=self.concurrency,
            prefetch=self.prefetch,
            until_empty=until_empty,
            until_done=until_done,
            on_close=self._wake.set,
        )
        runner = self._make_runner(fetcher, in_flight)
        self._events.emit(WorkerStarted(name, self.concurrency, self.isolation))
        try:
            fetcher.start()
            runner.start()
            seconds = 0.0
            while not (self._stop_requested or fetcher.closed):
                seconds = self._watch(runner, seconds)
        except BaseException:  # Ctrl-C without a signal handler
            self._stop_now_at = -inf
            raise
        finally:
            self._shut_down(runner, fetcher, in_flight)
            report = in_flight.make_report()
            self._events.emit(WorkerStopped(name, report.abandoned))
        if runner.error is not None:
            raise runner.error
        return report

    def _shut_down(
        self, runner: "Runner[M]", fetcher: Fetcher[M], in_flight: InFlight[M]
    ) -> None:
        in_flight.stopping.set()
        fetcher.close()
        running = sum(claimed.lease.live for claimed in in_flight.get_started())
        self._events.emit(WorkerStopping(self._queue.name, running))
        until = self._clock.monotonic() + self._drain_seconds
        while (runner.count_unfinished() or in_flight.count_waiting()) and (
            self._clock.monotonic() < min(until, self._stop_now_at)
        ):
            self._watch(runner, 0.02)
        in_flight.give_up.set()
        runner.cancel_running()
        runner.join(self._limits.kill_grace_seconds + runner.exit_timeout_seconds)
        fetcher.stop(self._limits.kill_grace_seconds)

    def _watch(self, runner: "Runner[M]", seconds: float) -> float:
        """Wait for a wake-up or the time limit, then enforce the limits of running work.

        Returns the seconds until the next check.
        """
        self._clock.wait(self._wake, None if seconds == inf else seconds)
        self._wake.clear()
        return runner.watch(self._clock.monotonic())

    def _make_runner(self, fetcher: Fetcher[M], in_flight: InFlight[M]) -> "Runner[M]":
        count, handler, limits = self.concurrency, self._handler, self._limits
        match self.isolation:
            case "thread":
                return SlotRunner(
                    count,
                    lambda: DirectExecutor(handler, in_flight.make_context),
                    fetcher,
                    in_flight,
                    find_limits=lambda _: limits,
                    strictest=limits,
                )
            case "process":
                return SlotRunner(
                    count,
                    lambda: Watchdog(self._pickled_handler, limits, in_flight),
                    fetcher,
                    in_flight,
                    find_limits=lambda _: None,
                    exit_timeout_seconds=EXIT_TIMEOUT_SECONDS,
                )
            case "async":
                return AsyncRunner(count, handler, fetcher, in_flight, limits)


def _check_handler(handler: Handler, isolation: str) -> bytes:
    """Check that the handler can run with `isolation`, and pickle it for child processes."""
    kind = inspect_handler(handler)
    match isolation:
        case "thread":
            return b""
        case "process":
            return pickle_handler(handler)
        case "async" if kind.is_async:
            return b""
        case "async":
            raise ConfigError(
                f"{get_handler_name(handler)} is not an `async def`, so it would block the "
                "event loop: use isolation 'thread' or 'process'"
            )
        case _:
            raise ConfigError(f"isolation must be thread, process or async, not {isolation!r}")


def _limit_prefetch(prefetch: Prefetch, queue: QueueManager[M]) -> int:
    """Return how many messages may be claimed ahead from this queue.

    A crash charges an attempt to messages that were claimed ahead. A message that has only
    one would be dead-lettered although no handler saw it.
    """
    if prefetch != "auto" and not (isinstance(prefetch, int) and prefetch >= 0):
        raise ConfigError(f"prefetch must be 'auto', or 0 or more messages, not {prefetch!r}")
    if not queue.can_prefetch or queue.max_attempts == 1:
        return 0
    return queue.poll_batch if prefetch == "auto" else prefetch


def _check_above_zero(**settings: float | None) -> None:
    for name, value in settings.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be above 0, not {value}")
