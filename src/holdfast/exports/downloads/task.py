"""One task in a worker process: its input, the digests of its bytes, and its run.

`Checksum` is the expected checksum of its file, and `Digests` are those of the received bytes.
A running task can be cancelled, and reports its progress to the pool.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Event
from typing import Any, Self

from holdfast.exports.downloads.errors import TaskError
from holdfast.exports.errors import InvalidJob
from holdfast.exports.file_names import normalize_key
from holdfast.exports.pool.wire import CANCELLED
from holdfast.lease.clock import Clock

_FORM = re.compile(r"(sha256):([0-9a-f]{64})|(md5):([0-9a-f]{32})", re.IGNORECASE)
_REPORT_INTERVAL_SECONDS = 0.5
_CHECK_INTERVAL_SECONDS = 1.0
_CLOSE_TIMEOUT_SECONDS = 5.0  # libcurl checks for cancellation once a second


@dataclass(frozen=True, slots=True)
class Checksum:
    """The expected checksum of a file."""

    algorithm: str
    hexadecimal: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `sha256:<hex>` or `md5:<hex>`. Raises InvalidJob."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise InvalidJob("a checksum is sha256:<64 hex digits> or md5:<32 hex digits>")
        algorithm, digits = (group for group in match.groups() if group)
        return cls(algorithm.lower(), digits.lower())


class Digests:
    """Running digests of one stream of bytes. Without algorithms it costs nothing."""

    def __init__(self, algorithms: Iterable[str]) -> None:
        self._algorithms = sorted(set(algorithms))
        self.restart()

    def update(self, data: bytes | memoryview) -> None:
        """Add bytes to every digest."""
        for digest in self._running.values():
            digest.update(data)

    def restart(self) -> None:
        """Forget all bytes that were added."""
        # MD5 is for servers that publish nothing better, and security does not rely on it
        # here. Systems that forbid MD5 otherwise allow it with usedforsecurity=False.
        self._running = {
            name: hashlib.new(name, usedforsecurity=False) for name in self._algorithms
        }

    def has(self, checksum: Checksum) -> bool:
        """Return whether the bytes have this checksum."""
        return self._running[checksum.algorithm].hexdigest() == checksum.hexadecimal

    def get_digest(self, algorithm: str) -> bytes:
        """Return the digest of the bytes so far."""
        return self._running[algorithm].digest()

    def __bool__(self) -> bool:
        return bool(self._running)


@dataclass(frozen=True, slots=True)
class TaskInput:
    """The URL of a file, its name in the target, and what is known about its bytes."""

    task_id: str
    job_id: str
    url: str
    key: str
    bucket: str | None = None
    checksum: Checksum | None = None
    size: int | None = None
    attempt: int = 1
    job_created_at: float = 0.0

    @property
    def mark(self) -> str:
        """The mark of a published file, by which a later attempt at this task recognises it.

        It is a hash, because the URL may hold a signature. A later job has another mark even
        if it has the same id, because its store was deleted.
        """
        created_at = f"{self.job_created_at:.6f}"  # stores keep microseconds
        facts = (self.task_id, self.url, self.key, self.checksum, self.size, created_at)
        return hashlib.sha256(repr(facts).encode(errors="surrogatepass")).hexdigest()[:32]

    @classmethod
    def parse(cls, task: Mapping[str, Any]) -> Self:
        """Parse a task from the pool. Raises TaskError."""
        try:
            checksum, size = task.get("checksum"), task.get("size")
            return cls(
                str(task["taskId"]),
                str(task["jobId"]),
                str(task["url"]),
                normalize_key(str(task["s3Key"])),
                task.get("s3Bucket"),
                Checksum.parse(str(checksum)) if checksum else None,
                None if size is None else int(size),
                int(task.get("attempt", 1)),
                float(task.get("jobCreatedAt", 0.0)),
            )
        except InvalidJob as error:
            raise TaskError("InvalidTask", str(error)) from None
        except KeyError as error:
            raise TaskError("InvalidTask", f"the task has no {error}") from None
        except (TypeError, ValueError):
            raise TaskError(
                "InvalidTask", "the size, the attempt or a time is not a number"
            ) from None

    def verify(self, size: int, digests: Digests) -> None:
        """Raise TaskError unless the received bytes are the expected file."""
        if self.size is not None and size != self.size:
            raise self.make_size_error(size)
        if self.checksum is not None and not digests.has(self.checksum):
            text = f"the bytes do not have the expected {self.checksum.algorithm} checksum"
            raise TaskError(
                "ChecksumMismatch",
                f"{self.key}: {text}",
                retryable=True,
                start_over=True,
                keep=False,
            )

    def make_size_error(self, size: int) -> TaskError:
        """Return the error of a file that has another size than expected."""
        text = f"{self.key}: {size} bytes or more, {self.size} were expected"
        return TaskError("SizeMismatch", text, retryable=True, start_over=True, keep=False)

    def __repr__(self) -> str:
        return f"TaskInput({self.task_id})"


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
    """All running tasks. Safe for threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended = Condition()
        self._running: set[RunningDownload] = set()
        self._closed = False

    @contextmanager
    def start(
        self, task: TaskInput, report: Callable[[int], None]
    ) -> Iterator[RunningDownload]:
        """Keep a running task for as long as the context lasts."""
        run = RunningDownload(task, report, self._clock)
        with self._ended:
            self._running.add(run)
            if self._closed:
                run.stop()
        try:
            yield run
        finally:
            with self._ended:
                self._running.discard(run)
                self._ended.notify_all()

    def stop(self, job_id: str | None = None) -> None:
        """Stop all running tasks of a job, or of all jobs."""
        with self._ended:
            for run in self._running:
                if job_id in (None, run.task.job_id):
                    run.stop()

    def close(self) -> bool:
        """Stop all tasks and wait for their end. Return False if it was closed before."""
        with self._ended:
            if self._closed:
                return False
            self._closed = True
            self.stop()
            self._ended.wait_for(lambda: not self._running, _CLOSE_TIMEOUT_SECONDS)
        return True
