"""Export tasks in a worker process: download, verify and publish one file per task.

part ── complete ──▶ verified ──▶ published       visible only from here on
 ▲ │                    │
 │ └ lost, 5xx, …       └ not the expected file
 └── wait, continue ◀───┴── once, from zero
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from holdfast.exports.downloads.partial_files import PartialFile
from holdfast.exports.downloads.targets import open_target
from holdfast.exports.downloads.task import (
    Digests,
    RunningDownload,
    RunningDownloads,
    TaskError,
    TaskInput,
    from_os_error,
)
from holdfast.exports.downloads.url_guard import UrlGuard
from holdfast.exports.pool.wire import CANCELLED
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

_FIRST_WAIT_SECONDS = 0.5
_MAX_WAIT_SECONDS = 60.0
_MIN_PROGRESS_BYTES = 1 << 20  # an attempt that gained this much is not a failure
# A partial file that no process has continued for this long is removed.
_ABANDONED_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """Settings of the export work, plain values that can be sent to another process.

    An attempt ends after `stall_seconds` with almost no bytes.
    `durable`: published files survive a power cut, at the cost of one sync each.
    """

    target: str  # a folder, or s3://bucket/prefix
    scratch: str  # for partial files of S3 targets; a folder target keeps its own inside
    allow_private: bool = False
    allow_hosts: tuple[str, ...] = ()
    attempts: int = 5
    max_bytes: int | None = None
    stall_seconds: float = 60.0
    durable: bool = False


class RetryCounter:
    """The failed attempts of one task.

    A file is not given up while it grows. An attempt that got a mebibyte further than all
    attempts before it resets the count. A server that starts over each time does not.
    """

    def __init__(self, attempts: int, random: Random) -> None:
        self._attempts = attempts
        self._backoff = Backoff(_FIRST_WAIT_SECONDS, max_seconds=_MAX_WAIT_SECONDS)
        self._random = random
        self._failures = 0
        self._max_size = 0
        self._restarted_codes: set[str] = set()

    def record_failure(self, error: TaskError, size: int) -> float:
        """Count a failed attempt and return the seconds until the next one.

        Raises `error` if there is no next attempt.
        """
        if not error.retryable:
            raise error
        if error.start_over:
            self._allow_one_restart(error)
        if size >= self._max_size + _MIN_PROGRESS_BYTES:
            self._failures = 0
        self._max_size = max(self._max_size, size)
        self._failures += 1
        if self._failures >= self._attempts:
            raise error
        wait = self._backoff.delay(self._failures, self._random)
        return min(max(wait, error.after_seconds), self._backoff.max_seconds)

    def _allow_one_restart(self, error: TaskError) -> None:
        # The complete file was received and is wrong. One download from zero distinguishes
        # a bad resume from a wrong file. A second one would only cost as much again.
        if error.code in self._restarted_codes:
            raise error
        self._restarted_codes.add(error.code)


def make_work(settings: WorkSettings) -> Callable[[], "ExportWork"]:
    """Return a function that a worker process calls once to build its work.

    The function can be pickled.
    """
    return partial(ExportWork, settings)


class ExportWork:
    """The export tasks of one process, several at once."""

    def __init__(self, settings: WorkSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        """Open the target. Raises ConfigError if something that it needs is missing."""
        self._settings = settings
        self._runs = RunningDownloads(clock)
        guard = UrlGuard(allow_private=settings.allow_private, allow_hosts=settings.allow_hosts)
        # Only here, because they load pycurl, which only worker processes need.
        from holdfast.exports.downloads.download import Downloader
        from holdfast.exports.downloads.transfer import CurlHandles

        self._handles = CurlHandles(settings.stall_seconds)
        self._downloader = Downloader(guard, self._handles, settings.max_bytes)
        self._target = open_target(settings.target, settings.scratch, durable=settings.durable)
        self._target.partial_files.sweep(clock.time() - _ABANDONED_SECONDS)
        self._random = Random()

    def process(
        self, task: Mapping[str, Any], report: Callable[[int], None]
    ) -> Mapping[str, Any]:
        """Do one task and return its result. Every failure except MemoryError is a result."""
        try:
            with self._runs.start(TaskInput.parse(task), report) as run:
                size = self._export(run)
        except TaskError as error:
            return _make_failure(error)
        except MemoryError:  # the pool repeats the task in a new process
            raise
        except Exception as error:  # its text may hold the URL, which may hold a signature
            return _make_failure(TaskError("Unexpected", type(error).__name__))
        return {"success": True, "bytesProcessed": size, "error": None}

    def _export(self, run: RunningDownload) -> int:
        task = run.task
        # The sender of a message must not choose among all buckets this process may write to.
        if task.bucket not in (None, self._target.bucket):
            raise TaskError("BucketRefused", "the task names another bucket than the target")
        try:
            return self._export_part(run)
        except TaskError as error:
            if error.code == CANCELLED or (size := self._target.find_published(task)) is None:
                raise
            return size

    def _export_part(self, run: RunningDownload) -> int:
        task = run.task
        known = {task.checksum.algorithm} if task.checksum else set()
        digests = Digests({*self._target.digests, *known})
        try:
            part = self._target.partial_files.open(task.task_id, task.url, digests)
            keep = False
            try:
                # A process that was killed may have published the file. To look for it in a
                # folder costs nothing, but in S3 it is a request, so first attempts do not.
                if task.attempt > 1 or self._target.bucket is None:
                    size = self._target.find_published(task)
                    if size is not None:
                        return size
                self._export_with_retries(part, run)
                return part.size
            except TaskError as error:
                keep = error.keep
                raise
            finally:
                part.close(keep=keep)
        except OSError as error:
            raise from_os_error(error, task.key) from error

    def _export_with_retries(self, part: PartialFile, run: RunningDownload) -> None:
        task = run.task
        retries = RetryCounter(self._settings.attempts, self._random)
        part.resume(
            trust_other_boots=task.checksum is not None,
            on_chunk=partial(_report_reread, run),
        )
        # A connection that served another file may deliver that file's surplus bytes as the
        # bytes of this one. Only a checksum proves that it did not, because files of the
        # same size may have other bytes.
        own_connection = task.checksum is None
        while True:
            try:
                run.check()
                if not part.complete:
                    self._downloader.download(part, run, own_connection)
                task.verify(part.size, part.digests)
                self._target.publish(part, task.key, run)
                return
            except TaskError as error:
                if error.start_over:
                    self._handles.close_job(task.job_id)
                wait_seconds = retries.record_failure(error, part.size)
                if error.start_over:
                    part.restart()
                own_connection = True  # the connection may have caused the failure
                run.wait(wait_seconds)

    def cancel(self, job_id: str) -> None:
        """End the job's running downloads within about a second.

        Their partial files are kept for a while, because a job is also cancelled here when
        it moves to another process.
        """
        self._runs.stop(job_id)

    def close(self) -> None:
        """End all downloads. Partial files are kept for the next process.

        Calling it twice is the same as calling it once.
        """
        if self._runs.close():
            self._handles.close()
            self._target.close()


def _make_failure(error: TaskError) -> Mapping[str, Any]:
    details = {"code": error.code, "message": error.message}
    return {"success": False, "bytesProcessed": 0, "error": details}


def _report_reread(run: RunningDownload, count: int) -> None:
    run.check()
    run.report(count)
