"""The context: what a handler can read and report about its attempt."""

from math import inf
from threading import Event
from typing import Any, Protocol

from holdfast.lease.clock import Clock
from holdfast.lease.lease import Lease
from holdfast.queue.message import QueueMessage

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
