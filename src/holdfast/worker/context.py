"""One attempt: the context that its handler gets, and the executor that calls the handler.

An executor is how a slot runs handlers: in its thread (DirectExecutor), or in a child process
(Watchdog), which calls them in its main thread.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, Protocol

from holdfast.lease.clock import Clock
from holdfast.lease.lease import Lease
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import M, QueueMessage
from holdfast.worker.handler import Handler, inspect_handler
from holdfast.worker.outcome import DONE, Outcome, retry_after_error, to_outcome

if TYPE_CHECKING:
    import asyncio

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

    def prepare(self) -> bool:
        """Get ready before a message is claimed. Return False if the worker stops meanwhile.

        Raises HandlerNotFound if no message could ever be handled, and OSError if it may
        work later.
        """
        return True

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
