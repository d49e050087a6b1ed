"""Ending what runs for a job, and telling the pool that something still moves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event

from holdfast.adapters.export.errors import TaskError
from holdfast.core.clock import Clock
from holdfast.jobs.pool.wire import CANCELLED

_TELL_SECONDS = 0.5
_GLANCE_SECONDS = 1.0
_END_SECONDS = 5.0  # libcurl looks up once a second


class RunningDownload:
    """One task under way: it can be stopped, it can wait, and it tells how far it is."""

    def __init__(self, report: Callable[[int], None], clock: Clock) -> None:
        self._report = report
        self._clock = clock
        self._stopped = Event()
        self._untold = 0
        self._told_at = clock.monotonic()

    def stop(self) -> None:
        """End it soon. What it has so far stays, for somebody who comes again."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def check(self) -> None:
        """Raises TaskError when it is to end."""
        if self.stopped:
            raise TaskError(CANCELLED, "it was called off", keep=True)

    def moved(self, count: int) -> bool:
        """So many bytes more. True when it is time to tell, and was told."""
        self._untold += count
        now = self._clock.monotonic()
        if now - self._told_at < _TELL_SECONDS:
            return False
        self.tell(now)
        return True

    def tell(self, now: float) -> None:
        count, self._untold, self._told_at = self._untold, 0, now
        self._report(count)

    def finish(self) -> None:
        if self._untold:
            self.tell(self._clock.monotonic())

    def still_waiting(self) -> None:
        """Waiting is not hanging: say so."""
        self.check()
        self.moved(0)

    def wait(self, seconds: float) -> None:
        """Let that long pass. Raises TaskError as soon as the task is to end."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            self.still_waiting()
            self._clock.wait(self._stopped, min(left, _GLANCE_SECONDS))
        self.check()


class RunningDownloads:
    """All tasks under way, by job. Safe for threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended = Condition()
        self._of_job: dict[str, set[RunningDownload]] = {}
        self._closed = False

    @contextmanager
    def one(self, job_id: str, report: Callable[[int], None]) -> Iterator[RunningDownload]:
        run = RunningDownload(report, self._clock)
        with self._ended:
            self._of_job.setdefault(job_id, set()).add(run)
            if self._closed:
                run.stop()
        try:
            yield run
        finally:
            with self._ended:
                self._of_job[job_id].discard(run)
                if not self._of_job[job_id]:
                    del self._of_job[job_id]
                self._ended.notify_all()

    def stop(self, job_id: str) -> None:
        with self._ended:
            for run in self._of_job.get(job_id, ()):
                run.stop()

    def close(self) -> bool:
        """End all and wait for it; False when it was done before."""
        with self._ended:
            if self._closed:
                return False
            self._closed = True
            for runs in self._of_job.values():
                for run in runs:
                    run.stop()
            self._ended.wait_for(lambda: not self._of_job, _END_SECONDS)
        return True
