"""Running downloads: how to cancel them, and how they report progress to the pool."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event

from holdfast.exports.downloads.errors import TaskError
from holdfast.exports.downloads.task_input import TaskInput
from holdfast.exports.pool.wire import CANCELLED
from holdfast.lease.clock import Clock

_REPORT_INTERVAL_SECONDS = 0.5
_CHECK_INTERVAL_SECONDS = 1.0
_CLOSE_TIMEOUT_SECONDS = 5.0  # libcurl checks for cancellation once a second


class RunningDownload:
    """One running task, which can be stopped, can wait, and reports its progress."""

    def __init__(self, task: TaskInput, report: Callable[[int], None], clock: Clock) -> None:
        self.task = task
        self._report = report
        self._clock = clock
        self.is_stopped = False  # the task is to end
        self._stopped = Event()  # the same, for waits
        self._unreported = 0
        self._reported_at = clock.monotonic()

    def stop(self) -> None:
        """Have the task end soon. Its partial file is kept for the next attempt."""
        self.is_stopped = True
        self._stopped.set()

    def check(self) -> None:
        """Raise TaskError if the task is to end."""
        if self.is_stopped:
            raise TaskError(CANCELLED, "it was cancelled", keep=True)

    def is_report_due(self) -> bool:
        """Return whether it is time to report bytes."""
        return self._clock.monotonic() - self._reported_at >= _REPORT_INTERVAL_SECONDS

    def report_bytes(self, count: int) -> None:
        """Count more bytes, and report them if a report is due."""
        self._unreported += count
        if self.is_report_due():
            self._send_report()

    def _send_report(self) -> None:
        count, self._unreported = self._unreported, 0
        self._reported_at = self._clock.monotonic()
        self._report(count)

    def finish(self) -> None:
        """Report the bytes that were not reported yet."""
        if self._unreported:
            self._send_report()

    def report_waiting(self) -> None:
        """Report that the task waits, so that the pool does not take it for stalled.

        Raises TaskError if the task is to end.
        """
        self.check()
        self.report_bytes(0)

    def wait(self, seconds: float) -> None:
        """Wait that long. Raises TaskError as soon as the task is to end."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0:
            self.report_waiting()
            self._clock.wait(self._stopped, min(left, _CHECK_INTERVAL_SECONDS))
        self.check()


class RunningDownloads:
    """All running tasks, by job. Safe for threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended = Condition()
        self._by_job: dict[str, set[RunningDownload]] = {}
        self._closed = False

    @contextmanager
    def start(
        self, task: TaskInput, report: Callable[[int], None]
    ) -> Iterator[RunningDownload]:
        """Keep a running task in the job's set for as long as the context lasts."""
        run, job_id = RunningDownload(task, report, self._clock), task.job_id
        with self._ended:
            self._by_job.setdefault(job_id, set()).add(run)
            if self._closed:
                run.stop()
        try:
            yield run
        finally:
            with self._ended:
                self._by_job[job_id].discard(run)
                if not self._by_job[job_id]:
                    del self._by_job[job_id]
                self._ended.notify_all()

    def stop(self, job_id: str) -> None:
        """Stop all running tasks of a job."""
        with self._ended:
            for run in self._by_job.get(job_id, ()):
                run.stop()

    def close(self) -> bool:
        """Stop all tasks and wait for their end. Return False if it was closed before."""
        with self._ended:
            if self._closed:
                return False
            self._closed = True
            for runs in self._by_job.values():
                for run in runs:
                    run.stop()
            self._ended.wait_for(lambda: not self._by_job, _CLOSE_TIMEOUT_SECONDS)
        return True
