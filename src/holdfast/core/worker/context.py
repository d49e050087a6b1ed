"""The context: what a handler can read and report about its attempt."""

from abc import ABC, abstractmethod
from math import inf
from threading import Event
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import QueueMessage

UNKNOWN = object()  # not loaded yet; None means that no checkpoint was saved


class Context(ABC):
    """The handler's view of its lease.

    `attempt` counts deliveries from 1. `fence` grows with every claim, charged or not; pass
    it to the systems that the work writes to, and let them refuse smaller ones. `stopping`
    is set when the worker drains, which is a good moment to checkpoint and return Retry.
    """

    __slots__ = ("attempt", "fence", "message_id", "progress", "stopping")

    def __init__(self, message_id: str, attempt: int, fence: int, stopping: Event) -> None:
        self.message_id = message_id
        self.attempt = attempt
        self.fence = fence
        self.stopping = stopping
        self.progress: float | None = None

    @property
    @abstractmethod
    def lost(self) -> Event:
        """An event that is set when the lease is lost.

        Stop the work then, because nothing done later may count.
        """

    @property
    @abstractmethod
    def deadline(self) -> float:
        """When the lease ends, on Holdfast's monotonic clock. Renewals move it."""

    @property
    @abstractmethod
    def seconds_left(self) -> float:
        """The seconds until the lease ends if it is not renewed."""

    @property
    @abstractmethod
    def max_seconds_left(self) -> float:
        """The seconds until the queue stops extending the lease; infinity for most queues.

        SQS ends every lease 12 hours after the receive. Checkpoint and return Retry before
        that.
        """

    @property
    @abstractmethod
    def checkpoint(self) -> Any:
        """The checkpoint an earlier attempt saved last, or None. Read on first use."""

    @abstractmethod
    def beat(self, progress: float | None = None, checkpoint: Any = None) -> None:
        """Report that the work makes progress, and save `checkpoint` for the next attempt.

        Raises LeaseLost if the lease is lost. Saving a checkpoint is I/O, so a coroutine
        should call `await asyncio.to_thread(ctx.beat, checkpoint=…)`.
        """

    @abstractmethod
    def raise_if_lost(self) -> None:
        """Raise LeaseLost if the lease is lost. Call it before a step that cannot be undone."""


class LeaseContext(Context):
    """The context of a handler that runs in the process that holds its lease."""

    __slots__ = ("_checkpoint", "_clock", "_lease", "_message", "_queue")

    def __init__(
        self,
        queue: QueueManager[Any],
        message: QueueMessage,
        lease: Lease,
        stopping: Event,
        clock: Clock,
    ) -> None:
        super().__init__(lease.message_id, lease.attempt, lease.fence, stopping)
        self._queue = queue
        self._message = message
        self._lease = lease
        self._clock = clock
        self._checkpoint: Any = UNKNOWN

    @property
    def lost(self) -> Event:
        return self._lease.lost

    @property
    def deadline(self) -> float:
        return self._lease.deadline

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._lease.deadline - self._clock.monotonic())

    @property
    def max_seconds_left(self) -> float:
        return compute_seconds_until(self._lease.cap_at, self._clock.monotonic())

    @property
    def checkpoint(self) -> Any:
        if self._checkpoint is UNKNOWN:
            # Before the first claim there was no attempt, so there is nothing to load.
            is_first = self.fence <= 1
            self._checkpoint = None if is_first else self._queue.load_checkpoint(self._message)
        return self._checkpoint

    def beat(self, progress: float | None = None, checkpoint: Any = None) -> None:
        now = self._clock.monotonic()
        self._lease.check(now)
        self._lease.beat(now)
        if progress is not None:
            self.progress = progress
        if checkpoint is not None:
            self._queue.save_checkpoint(self._message, checkpoint)

    def raise_if_lost(self) -> None:
        self._lease.check(self._clock.monotonic())


def compute_seconds_until(cap_at: float | None, now: float) -> float:
    """Return the seconds until `cap_at`, or infinity if there is no cap."""
    return inf if cap_at is None else max(0.0, cap_at - now)
