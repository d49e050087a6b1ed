"""Executors: how a slot of the worker runs the handler."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic

from holdfast.core.lease.lease import Lease
from holdfast.core.queue.message import M, QueueMessage
from holdfast.core.worker.context import Context, LeaseContext
from holdfast.core.worker.handler import Handler, inspect_handler
from holdfast.core.worker.outcome import Outcome
from holdfast.core.worker.outcome_mapping import retry_after_error, to_outcome

if TYPE_CHECKING:
    import asyncio

BoundHandler = Callable[[QueueMessage, Context], Any]


class Executor(ABC, Generic[M]):
    """Runs the handler for one message at a time. Only one thread uses it."""

    @abstractmethod
    def prepare(self) -> bool:
        """Get ready before a message is claimed. Return False if the worker stops meanwhile.

        Raises HandlerNotFound if no message could ever be handled, and OSError if it may
        work later.
        """

    @abstractmethod
    def execute(self, message: M, lease: Lease) -> Outcome:
        """Run the handler and return its outcome.

        Raises the errors of `prepare`, but only if the handler was not started.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources. The same thread calls this once."""


def bind_handler(handler: Handler) -> BoundHandler:
    """Return the handler as `(message, ctx)`, whether it takes the context or not."""
    if inspect_handler(handler).takes_context:
        return handler
    return lambda message, _: handler(message)


class DirectExecutor(Executor[M]):
    """Calls the handler in the thread of the slot.

    A thread cannot be killed, so a handler that hangs keeps its slot and loses its lease.
    """

    def __init__(
        self, handler: Handler, make_context: Callable[[M, Lease], LeaseContext]
    ) -> None:
        self._call = bind_handler(handler)
        self._make_context = make_context
        self._runner: asyncio.Runner | None = None

    def prepare(self) -> bool:
        """Return True, because a thread needs no preparation."""
        return True

    def execute(self, message: M, lease: Lease) -> Outcome:
        """Call the handler, and await its result if that is awaitable."""
        try:
            result = self._call(message, self._make_context(message, lease))
            if result is not None and inspect.isawaitable(result):
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
