"""Where a handler runs: the strategies of a slot."""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Generic

from holdfast.core.lease.lease import Lease
from holdfast.core.queue.message import M, QueueMessage
from holdfast.core.worker.context import Context, LeaseContext
from holdfast.core.worker.handler import Handler, handler_kind
from holdfast.core.worker.outcome import Outcome
from holdfast.core.worker.outcome_mapping import outcome_of, retry_after_error

Call = Callable[[QueueMessage, Context], Any]


class Executor(ABC, Generic[M]):
    """Runs one message at a time. Used by one thread."""

    @abstractmethod
    def prepare(self) -> bool:
        """Be ready before anything is claimed; False when the worker stops meanwhile.

        Raises HandlerNotFound when no message could ever be handled, OSError when it may
        work later.
        """

    @abstractmethod
    def execute(self, message: M, lease: Lease) -> Outcome:
        """Run the handler to its end. Raises what `prepare` raises, before it started."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; called once, by the same thread."""


def caller(handler: Handler) -> Call:
    """The handler as `(message, ctx)`, whether it takes the context or not."""
    if handler_kind(handler).takes_context:
        return handler
    return lambda message, _: handler(message)


class DirectExecutor(Executor[M]):
    """Calls the handler in the slot's own thread.

    A thread cannot be killed: a handler that hangs keeps its slot, and loses its lease.
    """

    def __init__(
        self, handler: Handler, make_context: Callable[[M, Lease], LeaseContext]
    ) -> None:
        self._call = caller(handler)
        self._make_context = make_context
        self._runner: asyncio.Runner | None = None

    def prepare(self) -> bool:
        return True

    def execute(self, message: M, lease: Lease) -> Outcome:
        try:
            result = self._call(message, self._make_context(message, lease))
            if result is not None and inspect.isawaitable(result):
                result = self._finish(result, lease)
        # Not even SystemExit may end the slot: the message would be held in silence.
        except BaseException as error:
            return retry_after_error(error)
        return outcome_of(result)

    def _finish(self, work: Awaitable[Any], lease: Lease) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(cancelled_when_lost(work, lease))

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


async def cancelled_when_lost(work: Awaitable[Any], lease: Lease) -> Any:
    """Await the work; a lost lease cancels it."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    lease.on_lost(lambda _: soon(loop, task.cancel))
    return await work


def soon(loop: asyncio.AbstractEventLoop | None, call: Callable[..., Any], *args: Any) -> None:
    """Have the loop call it, from any thread. A loop that is closed has nothing to do."""
    if loop is not None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call, *args)
