"""The calls of a queue for async code. Each runs in a thread, so the event loop runs on."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial, wraps
from threading import Event
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from holdfast.errors import HoldfastError
from holdfast.lease import after_fork
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import M, Message, P

MAX_POLLS = 64  # at the same time; further ones wait for one of these
MAX_CALLS = 16  # pushes and settlements at the same time

A = ParamSpec("A")
R = TypeVar("R")


def _in_thread(
    method: Callable[Concatenate[QueueManager[Any], A], R],
) -> Callable[Concatenate["AsyncQueue[Any]", A], Coroutine[Any, Any, R]]:
    """Return the async form of a queue's method."""

    async def call(queue: "AsyncQueue[Any]", /, *args: A.args, **kwargs: A.kwargs) -> R:
        operate: Callable[A, R] = getattr(queue._queue, method.__name__)
        return await queue._call(operate, *args, **kwargs)

    return wraps(method)(call)


class AsyncQueue(Generic[M]):
    """The async forms of `push`, `poll` and the calls that settle a message: `queue.aio`.

    They promise what the queue's own calls promise, and raise the same errors. Cancelling a
    call ends the waiting, but the call is still made; a cancelled `poll` gives back what it
    claims. Tasks and event loops may share one object.
    """

    def __init__(self, queue: QueueManager[M]) -> None:
        self._queue = queue
        self._start_pools()
        after_fork.run_after_fork(self, AsyncQueue._start_pools)

    def _start_pools(self) -> None:
        # Polls have threads of their own, because a settlement that had to wait behind polls
        # of an empty queue could miss its lease.
        self._polls = ThreadPoolExecutor(MAX_POLLS, "holdfast-aio-poll")
        self._calls = ThreadPoolExecutor(MAX_CALLS, "holdfast-aio")

    @overload
    async def push(self, message: M, *, delay_seconds: float = 0.0) -> str: ...

    @overload
    async def push(
        self: "AsyncQueue[Message[P]]", message: P, *, delay_seconds: float = 0.0
    ) -> str: ...

    async def push(self, message: Any, *, delay_seconds: float = 0.0) -> str:
        """Push one message, or the payload of one, and return its id."""
        return await self._call(self._queue.push, message, delay_seconds=delay_seconds)

    async def push_many(
        self, messages: Iterable[M], *, delay_seconds: float = 0.0
    ) -> list[str]:
        """Push many messages with few calls, and return their ids in order."""
        return await self._call(self._queue.push_many, messages, delay_seconds=delay_seconds)

    async def poll(self, batch_size: int = 1, *, wait_seconds: float = 0.0) -> list[M]:
        """Claim up to `batch_size` messages, and wait up to `wait_seconds` for the first."""
        stop = Event()
        poll = partial(self._queue.poll, batch_size, wait_seconds=wait_seconds, stop=stop)
        claimed = self._polls.submit(copy_context().run, poll)
        try:
            return await asyncio.wrap_future(claimed)
        except asyncio.CancelledError:
            # Without this, messages that are claimed from here on would wait for their
            # lease to expire.
            stop.set()
            self._calls.submit(self._give_back, claimed)
            raise

    def _give_back(self, claimed: "Future[list[M]]") -> None:
        with suppress(CancelledError, HoldfastError):  # not started, or nothing was claimed
            for message in claimed.result():
                with suppress(HoldfastError):  # it comes back when its lease expires
                    self._queue.release(message)

    ack = _in_thread(QueueManager.ack)
    ack_many = _in_thread(QueueManager.ack_many)
    nack = _in_thread(QueueManager.nack)
    release = _in_thread(QueueManager.release)
    dead_letter = _in_thread(QueueManager.dead_letter)
    extend = _in_thread(QueueManager.extend)

    async def _call(self, function: Callable[A, R], *args: A.args, **kwargs: A.kwargs) -> R:
        call = partial(copy_context().run, function, *args, **kwargs)
        # Shielded, because work whose ack is dropped when its task is cancelled would be
        # done again.
        return await asyncio.shield(asyncio.wrap_future(self._calls.submit(call)))
