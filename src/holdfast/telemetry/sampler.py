"""The sampler reports the counts of a queue while it runs, for metrics."""

from typing import Any, Self

from holdfast.events import Events, QueueMeasured
from holdfast.lease.background import BackgroundLoop
from holdfast.queue.manager import QueueManager

# `stats` may scan the queue. Sampling a huge queue less often costs at most 2 % of a core.
_MIN_PAUSE_PER_SECOND = 50.0


class QueueSampler:
    """Emits QueueMeasured every `interval_seconds`, as a context manager, in one thread.

    One sampler per queue is enough, however many workers it has. A sample that fails is left
    out, because the workers of the queue report that it is unavailable.
    """

    def __init__(
        self,
        queue: QueueManager[Any],
        events: Events | None = None,
        *,
        interval_seconds: float = 15.0,
    ) -> None:
        if not interval_seconds > 0:
            raise ValueError(f"interval_seconds must be above 0, not {interval_seconds}")
        self._queue = queue
        self._events = queue.events if events is None else events
        self._interval_seconds = interval_seconds
        self._loop = BackgroundLoop("holdfast-sampler", self.tick, queue.clock)

    def tick(self) -> float:
        """Emit one sample, and return the monotonic time of the next one."""
        clock = self._queue.clock
        started_at = clock.monotonic()
        try:
            stats = self._queue.stats()
        except Exception:  # whatever a backend raises, work must go on without samples
            return started_at + self._interval_seconds
        now = clock.monotonic()
        self._events.emit(
            QueueMeasured(
                self._queue.name,
                stats.ready,
                stats.delayed,
                stats.leased,
                stats.failed,
                stats.oldest_ready_seconds,
            )
        )
        pause_seconds = (now - started_at) * _MIN_PAUSE_PER_SECOND
        return now + max(self._interval_seconds, pause_seconds)

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
