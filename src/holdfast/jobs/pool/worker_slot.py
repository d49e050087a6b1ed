"""The places of a pool: each has one worker after the other, however they end."""

from dataclasses import dataclass

from holdfast.jobs.pool.worker import PoolWorker

STARTS = 3  # that may fail before the first one succeeds
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class WorkerSlot:
    """The place of one worker, for one after the other."""

    worker: PoolWorker | None = None
    not_before: float = 0.0  # when the next one may come
    _begun: bool = False
    _useless: int = 0  # workers in a row that were good for nothing

    @property
    def begun(self) -> bool:
        """Whether it ever had a worker that was ready."""
        return self._begun or (self.worker is not None and self.worker.begun)

    @property
    def hopeless(self) -> bool:
        return not self.begun and self._useless >= STARTS

    def vacate(self, now: float) -> None:
        assert self.worker is not None
        self._begun = self.begun
        if self.worker.was_of_use(now):
            self._useless = 0
        self.worker = None
        self.put_off(now)

    def put_off(self, now: float) -> None:
        """Where one after the other dies at once, the next one comes later and later."""
        doublings = min(self._useless - 1, 20)
        pause = FIRST_PAUSE_SECONDS * 2**doublings if self._useless else 0.0
        self._useless += 1
        self.not_before = now + min(pause, MAX_PAUSE_SECONDS)
