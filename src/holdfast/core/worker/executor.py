"""Executors: how a slot of the worker runs the handler."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic

from holdfast.core.lease.lease import Lease
from holdfast.core.queue.message import M, QueueMessage
from holdfast.core.worker.context import Context
from holdfast.core.worker.handler import Handler, inspect_handler
from holdfast.core.worker.outcome import Outcome

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
