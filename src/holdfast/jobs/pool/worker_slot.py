"""The worker slots of a pool. Each holds one worker after the other, however they end."""

from dataclasses import dataclass

from holdfast.jobs.pool.worker import PoolWorker

MAX_FAILED_STARTS = 3  # before the first one succeeds
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class WorkerSlot:
    """A place for one worker at a time, with the time when the next may start."""

    worker: PoolWorker | None = None
    not_before: float = 0.0  # when the next worker may start
    _was_ready: bool = False
    _failures: int = 0  # consecutive workers that died before finishing a task

    @property
    def was_ready(self) -> bool:
        """Whether the slot ever had a worker that was ready."""
        return self._was_ready or (self.worker is not None and self.worker.was_ready)

    @property
    def has_failed(self) -> bool:
        """Whether the first workers all died, so that the pool cannot start."""
        return not self.was_ready and self._failures >= MAX_FAILED_STARTS

    def vacate(self, now: float) -> None:
        """Remove a worker that is gone, and set when the next may start."""
        assert self.worker is not None
        self._was_ready = self.was_ready
        if self.worker.has_proved_itself(now):
            self._failures = 0
        self.worker = None
        self.delay_next(now)

    def delay_next(self, now: float) -> None:
        """Count a failure and delay the next start; the delay doubles with each failure."""
        doublings = min(self._failures - 1, 20)
        pause = FIRST_PAUSE_SECONDS * 2**doublings if self._failures else 0.0
        self._failures += 1
        self.not_before = now + min(pause, MAX_PAUSE_SECONDS)
