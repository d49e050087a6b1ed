"""What a handler may know and say about the attempt it is part of."""

from abc import ABC, abstractmethod
from math import inf
from threading import Event
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import QueueMessage

UNKNOWN = object()  # not loaded yet; None is a checkpoint nobody saved


class Context(ABC):
    """The handler's side of the lease.

    `attempt` counts deliveries from 1; `fence` rises with every claim, also those that
    were not charged: hand it to whatever the work writes to, and let it refuse older ones.
    `stopping` is set when the worker drains: a good moment to checkpoint and return Retry.
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
        """Set when the lease is gone: stop, nothing done from here on may count."""

    @property
    @abstractmethod
    def deadline(self) -> float:
        """Until when the lease holds, by Holdfast's monotonic clock; renewals move it."""

    @property
    @abstractmethod
    def seconds_left(self) -> float:
        """How long the lease holds if it is not renewed."""

    @property
    @abstractmethod
    def max_seconds_left(self) -> float:
        """How long it can be held at all: SQS ends it 12 hours after the receive, whatever
        is renewed; most other queues never do. Checkpoint and return Retry before it is over.
        """

    @property
    @abstractmethod
    def checkpoint(self) -> Any:
        """What an earlier attempt saved last, or None. Read from the queue on first use."""

    @abstractmethod
    def beat(self, progress: float | None = None, checkpoint: Any = None) -> None:
        """Say that the work moves, and save plain data for the next attempt if given.

        Raises LeaseLost when the lease is gone. Saving is I/O: a coroutine with many
        neighbours does it with `await asyncio.to_thread(ctx.beat, checkpoint=…)`.
        """

    @abstractmethod
    def raise_if_lost(self) -> None:
        """Raises LeaseLost when the lease is gone. Call it before what cannot be undone."""


class LeaseContext(Context):
    """The context of a handler that runs beside its lease, in the same process."""

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
        return seconds_until(self._lease.cap_at, self._clock.monotonic())

    @property
    def checkpoint(self) -> Any:
        if self._checkpoint is UNKNOWN:
            # The first claim has nothing before it: no call.
            earlier = self.fence > 1
            self._checkpoint = self._queue.load_checkpoint(self._message) if earlier else None
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


def seconds_until(cap_at: float | None, now: float) -> float:
    return inf if cap_at is None else max(0.0, cap_at - now)
