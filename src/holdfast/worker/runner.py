"""One attempt and the slots that run it: the context, the executors and the slot runner.

A slot runner has N slots, each with a thread that handles one message at a time. An executor
is how a slot runs handlers: in its thread (DirectExecutor), or in a child process (Watchdog),
which calls them in its main thread.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Generic, Protocol

from holdfast.errors import HandlerNotFound
from holdfast.lease.clock import Clock
from holdfast.lease.lease import Lease, LeaseState
from holdfast.process.liveness import LivenessLimits
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import M, QueueMessage
from holdfast.worker.handler import Handler, inspect_handler
from holdfast.worker.outcome import (
    DONE,
    GIVE_BACK,
    Outcome,
    retry_after_error,
    to_outcome,
)

if TYPE_CHECKING:  # a child process runs handlers, and needs none of these
    import asyncio

    from holdfast.worker.fetcher import Fetcher
    from holdfast.worker.settle import ClaimedMessage, InFlight

_UNKNOWN = object()  # not loaded yet; None means that no checkpoint was saved


class CheckpointStore(Protocol):
    """The part of the queue that a context uses."""

    def load_checkpoint(self, message: Any) -> Any:
        """Return the checkpoint that an earlier attempt saved last, or None."""

    def save_checkpoint(self, message: Any, checkpoint: Any) -> None:
        """Save a checkpoint for the next attempt."""


class Context:
    """The handler's view of its lease.

    `attempt` counts deliveries from 1. `fence` grows with every claim, charged or not; pass
    it to the systems that the work writes to, and let them refuse smaller ones. `stopping`
    is set when the worker drains, which is a good moment to checkpoint and return Retry.
    """

    __slots__ = (
        "_checkpoint",
        "_clock",
        "_lease",
        "_message",
        "_queue",
        "attempt",
        "fence",
        "message_id",
        "progress",
        "stopping",
    )

    def __init__(
        self,
        queue: CheckpointStore,
        message: QueueMessage,
        lease: Lease,
        stopping: Event,
        clock: Clock,
    ) -> None:
        self.message_id = lease.message_id
        self.attempt = lease.attempt
        self.fence = lease.fence
        self.stopping = stopping
        self.progress: float | None = None
        self._queue = queue
        self._message = message
        self._lease = lease
        self._clock = clock
        self._checkpoint: Any = _UNKNOWN

    @property
    def lost(self) -> Event:
        """An event that is set when the lease is lost.

        Stop the work then, because nothing done later may count. In a child process only
        `raise_if_lost` and `beat` set it; if the worker notices a loss first, it kills the
        process.
        """
        return self._lease.lost

    @property
    def deadline(self) -> float:
        """When the lease ends, on Holdfast's monotonic clock. Renewals move it."""
        return self._lease.deadline

    @property
    def seconds_left(self) -> float:
        """The seconds until the lease ends if it is not renewed."""
        return max(0.0, self._lease.deadline - self._clock.monotonic())

    @property
    def max_seconds_left(self) -> float:
        """The seconds until the queue stops extending the lease; infinity for most queues.

        SQS ends every lease 12 hours after the receive. Checkpoint and return Retry before
        that.
        """
        cap_at = self._lease.cap_at
        return inf if cap_at is None else max(0.0, cap_at - self._clock.monotonic())

    @property
    def checkpoint(self) -> Any:
        """The checkpoint an earlier attempt saved last, or None. Read on first use."""
        if self._checkpoint is _UNKNOWN:
            # Before the first claim there was no attempt, so there is nothing to load.
            is_first = self.fence <= 1
            self._checkpoint = None if is_first else self._queue.load_checkpoint(self._message)
        return self._checkpoint

    def beat(self, progress: float | None = None, checkpoint: Any = None) -> None:
        """Report that the work makes progress, and save `checkpoint` for the next attempt.

        `progress` is shown in the console and in `holdfast top`, after the next renewal. A
        number from 0 to 1 is shown as a share of the work. Raises LeaseLost if the lease
        is lost. Saving a checkpoint is I/O, so a coroutine should call
        `await asyncio.to_thread(ctx.beat, checkpoint=…)`.
        """
        now = self._clock.monotonic()
        self._lease.check(now)
        self._lease.beat(now, progress)
        if progress is not None:
            self.progress = progress
        if checkpoint is not None:
            self._queue.save_checkpoint(self._message, checkpoint)

    def raise_if_lost(self) -> None:
        """Raise LeaseLost if the lease is lost. Call it before a step that cannot be undone."""
        self._lease.check(self._clock.monotonic())


class Executor(ABC, Generic[M]):
    """Runs the handler for one message at a time. Only one thread uses it."""

    prepare: Callable[[], bool] | None = None
    """Gets ready before a message is claimed, and returns False if the worker stops meanwhile.

    Raises HandlerNotFound if no message could ever be handled, and OSError if it may work
    later. None means that there is nothing to prepare.
    """

    @abstractmethod
    def execute(self, message: M, lease: Lease) -> Outcome:
        """Run the handler and return its outcome.

        Raises the errors of `prepare`, but only if the handler was not started.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources. The same thread calls this once."""


class DirectExecutor(Executor[M]):
    """Calls the handler in the thread of the slot.

    A thread cannot be killed, so a handler that hangs keeps its slot and loses its lease.
    """

    def __init__(self, handler: Handler, make_context: Callable[[M, Lease], Context]) -> None:
        self._handler: Callable[..., Any] = handler
        self._takes_context = inspect_handler(handler).takes_context
        self._make_context = make_context
        self._runner: asyncio.Runner | None = None

    def execute(self, message: M, lease: Lease) -> Outcome:
        """Call the handler, and await its result if that is awaitable."""
        try:
            if self._takes_context:
                result = self._handler(message, self._make_context(message, lease))
            else:
                result = self._handler(message)
            if result is None:
                return DONE
            if inspect.isawaitable(result):
                result = self._run_awaitable(result, lease)
        # Not even SystemExit may end the slot, because the message would stay held silently.
        except BaseException as error:
            return retry_after_error(error)
        return to_outcome(result)

    def _run_awaitable(self, work: Awaitable[Any], lease: Lease) -> Any:
        import asyncio  # here, because most handlers are plain functions

        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(await_unless_lost(work, lease))

    def close(self) -> None:
        """Close the event loop, if a handler needed one."""
        if self._runner is not None:
            self._runner.close()


def execute_attempt(
    queue: QueueManager[M], executor: Executor[M], message: M, lease: Lease
) -> Outcome:
    """Run the handler for one message, inside the span of the attempt if there is one."""
    if queue.tracing is None:
        return executor.execute(message, lease)
    with queue.tracing.processing(message) as note_outcome:
        outcome = executor.execute(message, lease)
        note_outcome(outcome)
    return outcome


async def await_unless_lost(work: Awaitable[Any], lease: Lease) -> Any:
    """Await `work` and return its result. Cancel it if the lease is lost."""
    import asyncio

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    lease.on_lost(lambda _: call_soon(loop, task.cancel))
    return await work


def call_soon(
    loop: "asyncio.AbstractEventLoop | None", call: Callable[..., Any], *args: Any
) -> None:
    """Schedule `call` on the loop from any thread. Does nothing if the loop is closed."""
    if loop is not None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call, *args)


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
        fetcher: "Fetcher[M]",
        in_flight: "InFlight[M]",
        *,
        find_limits: FindLimits[M],
        strictest: LivenessLimits = LivenessLimits(),  # noqa: B008  # frozen
        exit_timeout_seconds: float = 0.0,
    ) -> None:
        self.error: BaseException | None = None
        """The error that made the run impossible. The fetcher is closed in that case."""
        self.exit_timeout_seconds = exit_timeout_seconds
        """How long running work may take to end after the kill grace."""
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
        """Return how many slots must finish before the worker may stop.

        A slot whose lease is lost may never finish.
        """
        alive = sum(thread.is_alive() for thread in self._threads)
        started = self._in_flight.get_started()
        lost = sum(claimed.lease.state is LeaseState.LOST for claimed in started)
        return max(0, alive - lost)

    def watch(self, now: float) -> float:
        """Give up the leases of threads whose work stalls or takes too long.

        Returns the seconds until this must be called again, at most. Infinity means that
        there is nothing to enforce.
        """
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
        while executor.prepare is None or self._prepare(executor.prepare):
            if (claimed := self._fetcher.fetch()) is None:
                return
            self._handle(executor, claimed)

    def _prepare(self, prepare: Callable[[], bool]) -> bool:
        """Prepare an executor, as often as it takes. Return False once the run is over."""
        failures = 0
        while not self._fetcher.is_done:
            try:
                return prepare()
            except OSError as error:
                failures += 1
                self._fetcher.back_off(error, failures)
        return False

    def _handle(self, executor: Executor[M], claimed: "ClaimedMessage[M]") -> None:
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
            in_flight.settle(claimed, outcome)
            self._fetcher.note_finished(claimed.seconds)
            # Its exception refers to this frame. Without this line, the message would stay in
            # memory until the garbage collector finds the cycle.
            del outcome
