"""One task in a worker process: its input, the digests of its bytes, its run and its errors.

`Checksum` is the expected checksum of its file, and `Digests` are those of the received bytes.
A running task can be cancelled, and reports its bytes to the pool.

An error has a stable code for programs, and a line of text for operators. No text holds a
URL's path, query or credentials, nor any text of the server, because each of them may be, or
repeat, a signature.
"""

import errno
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from threading import Condition, Event
from typing import Any, Self

from holdfast.errors import HoldfastError
from holdfast.exports.errors import InvalidJob
from holdfast.exports.file_names import normalize_key
from holdfast.exports.pool.wire import CANCELLED
from holdfast.lease.clock import Clock

_FORM = re.compile(r"(sha256):([0-9a-f]{64})|(md5):([0-9a-f]{32})", re.IGNORECASE)
_CLOSE_TIMEOUT_SECONDS = 5.0  # libcurl checks for cancellation once a second


class TaskError(HoldfastError):
    """The failure of a task, or of one attempt at it.

    `retryable`: the cause may pass. `after_seconds` is how long the server asked to wait.
    `start_over`: it is retryable, but the received bytes cannot be trusted, so the next attempt
    begins at zero and they are not kept.
    `keep`: the task failed, but the received bytes are still useful for a later attempt.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        after_seconds: float = 0.0,
        start_over: bool = False,
        keep: bool | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retryable = retryable or start_over
        self.after_seconds = after_seconds
        self.start_over = start_over
        self.keep = retryable if keep is None else keep


# Errors of the filesystem, with our code and text. All others are a StorageError.
_BY_ERRNO = {
    errno.ENOSPC: ("DiskFull", "the disk has no space left for it"),
    errno.EDQUOT: ("DiskFull", "the quota is used up"),
    errno.EFBIG: ("FileTooBig", "files as large as this are not allowed here"),
    errno.EROFS: ("ReadOnly", "the target cannot be written to"),
    errno.EACCES: ("Denied", "this user is not allowed to write there"),
    errno.EPERM: ("Denied", "this user is not allowed to write there"),
    errno.ELOOP: ("UnsafePath", "a folder of its path is a link, or not a folder"),
    errno.ENOTDIR: ("UnsafePath", "a folder of its path is a link, or not a folder"),
    errno.EISDIR: ("NameTaken", "a folder has that name"),
    errno.EXDEV: ("OtherFilesystem", "its folder is on another file system than the target"),
    errno.ENAMETOOLONG: ("InvalidName", "the name is too long for this file system"),
}
_TRANSIENT_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}


def from_os_error(error: OSError, key: str) -> TaskError:
    """Return the error of a failure to write `key`."""
    known = _BY_ERRNO.get(error.errno or 0)
    if known is not None:
        return TaskError(known[0], f"{key}: {known[1]}")
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    is_transient = error.errno in _TRANSIENT_ERRNOS
    return TaskError("StorageError", f"{key}: {name}", retryable=is_transient)


def from_http_status(host: str, status: int, after_seconds: float = 0.0) -> TaskError:
    """Return the error of a response that is not the file."""
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    is_transient = status >= 500 or status in (408, 429)
    return TaskError(
        f"Http{status}",
        f"{host}: {phrase}",
        retryable=is_transient,
        after_seconds=after_seconds,
    )


# libcurl's number, with our code, its meaning, and whether it may pass.
_BY_CURL_CODE = {
    1: ("BadAnswer", "the response is not HTTP", True),
    3: ("BadUrl", "the address cannot be used", False),
    6: ("NameNotResolved", "the name was not found", True),
    7: ("ConnectFailed", "the server does not accept the connection", True),
    8: ("BadAnswer", "the response is not HTTP", True),
    18: ("Truncated", "the connection ended before the file did", True),
    28: ("TimedOut", "no connection, or too few bytes for too long", True),
    35: ("TlsFailed", "the secure connection could not be made", True),
    52: ("ConnectionLost", "the connection ended without a response", True),
    55: ("ConnectionLost", "the connection broke", True),
    56: ("ConnectionLost", "the connection broke", True),
    58: ("TlsRefused", "the server requires a client certificate", False),
    59: ("TlsRefused", "the server offers no cipher that is accepted here", False),
    60: ("TlsRefused", "the server's certificate cannot be trusted", False),
    77: ("TlsRefused", "the file of trusted certificates cannot be read", False),
    91: ("TlsRefused", "the server's certificate was withdrawn", False),
    100: ("BadAnswer", "the head of the response is too large", False),
}


def from_curl_code(host: str, number: int) -> TaskError:
    """Return the error of a failed transfer. It does not repeat libcurl's own text."""
    code, text, is_transient = _BY_CURL_CODE.get(
        number, ("TransferFailed", f"the transfer failed (curl {number})", True)
    )
    return TaskError(code, f"{host}: {text}", retryable=is_transient)


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
            raise TaskError("ChecksumMismatch", f"{self.key}: {text}", start_over=True)

    def make_size_error(self, size: int) -> TaskError:
        """Return the error of a file that has another size than expected."""
        text = f"{self.key}: {size} bytes or more, {self.size} were expected"
        return TaskError("SizeMismatch", text, start_over=True)

    def __repr__(self) -> str:
        return f"TaskInput({self.task_id})"


class RunningDownload:
    """One running task, which can be stopped, can wait, and reports the bytes it received."""

    def __init__(self, task: TaskInput, report: Callable[[int], None], clock: Clock) -> None:
        self.task = task
        self.report = report
        self.clock = clock
        self._stopped = Event()

    def stop(self) -> None:
        """Have the task end soon. Its partial file is kept for the next attempt."""
        self._stopped.set()

    @property
    def is_stopped(self) -> bool:
        """Whether the task is to end."""
        return self._stopped.is_set()

    def check(self) -> None:
        """Raise TaskError if the task is to end."""
        if self.is_stopped:
            raise TaskError(CANCELLED, "it was cancelled", keep=True)

    def wait(self, seconds: float) -> None:
        """Wait that long. Raises TaskError as soon as the task is to end."""
        self.clock.wait(self._stopped, seconds)
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
