"""What a worker process does with a task: download, check, publish.

part ── whole ──▶ verified ──▶ published          visible only from here on
 ▲ │                 │
 │ └ lost, 5xx, …    └ not what it should be
 └── wait, go on ◀───┴── once, from zero
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from holdfast.adapters.export import errors
from holdfast.adapters.export.cancellation import RunningDownload, RunningDownloads
from holdfast.adapters.export.checksums import Digests
from holdfast.adapters.export.errors import TaskError
from holdfast.adapters.export.hosts import HostSlots
from holdfast.adapters.export.partial_files import PartialFile, PartialFiles
from holdfast.adapters.export.retries import RetryCounter
from holdfast.adapters.export.task_input import TaskInput
from holdfast.adapters.export.url_guard import UrlGuard
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError

_ABANDONED_SECONDS = 7 * 86_400.0  # nobody came back for a half-done file


@dataclass(frozen=True, slots=True)
class WorkSettings:
    """Plain, so that it can be sent to another process.

    `per_host` is of this process: whoever starts several divides.
    `stall_seconds`: so long below `slowest_bytes_per_second`, and the attempt ends.
    `durable`: published files survive a power cut, for the price of a sync each.
    """

    target: str  # a folder, or s3://bucket/prefix
    scratch: str  # half-done files of S3 targets; a folder has them below itself
    allow_private: bool = False
    allow_hosts: tuple[str, ...] = ()
    per_host: int = 8
    attempts: int = 5
    max_bytes: int | None = None
    connect_seconds: float = 10.0
    stall_seconds: float = 60.0
    slowest_bytes_per_second: int = 256
    longest_wait_seconds: float = 60.0
    durable: bool = False


class ExportTarget(Protocol):
    """Where files go. `digests` are those it wants of each file."""

    parts: PartialFiles
    digests: tuple[str, ...]
    bucket: str | None

    def publish(self, part: PartialFile, key: str, run: RunningDownload) -> None:
        """Have the whole, verified part appear under its name, at once or not at all."""

    def close(self) -> None: ...


def make_work(settings: WorkSettings) -> Callable[[], "ExportWork"]:
    """What a worker process calls, once, for its work. It can be pickled."""
    return partial(ExportWork, settings)


class ExportWork:
    """Does tasks, several at once. Lives in one process."""

    def __init__(self, settings: WorkSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        """Raises ConfigError when something is missing for this target."""
        self._settings = settings
        self._runs = RunningDownloads(clock)
        guard = UrlGuard(allow_private=settings.allow_private, allow_hosts=settings.allow_hosts)
        try:
            from holdfast.adapters.export.download import Downloader
            from holdfast.adapters.export.transfer import CurlHandles
        except ImportError:
            raise ConfigError("exports need pycurl: pip install 'holdfast[export]'") from None
        self._handles = CurlHandles(
            settings.connect_seconds, settings.stall_seconds, settings.slowest_bytes_per_second
        )
        self._downloader = Downloader(
            guard, self._handles, HostSlots(settings.per_host), settings.max_bytes, clock
        )
        self._target = _opened_target(settings)
        self._target.parts.sweep(clock.time() - _ABANDONED_SECONDS)

    def process(
        self, task: Mapping[str, Any], report: Callable[[int], None]
    ) -> Mapping[str, Any]:
        """Do one task. Whatever becomes of it is in the answer, but for MemoryError."""
        try:
            order = TaskInput.read(task)
            with self._runs.one(order.job_id, report) as run:
                size = self._export(order, run)
                run.finish()
        except TaskError as trouble:
            return _failure(trouble)
        except MemoryError:  # the pool has a fresh process do it
            raise
        except Exception as error:  # its text may hold the URL, and that a signature
            return _failure(TaskError("Unexpected", type(error).__name__))
        return {"success": True, "bytesProcessed": size, "error": None}

    def _export(self, order: TaskInput, run: RunningDownload) -> int:
        self._check_bucket(order)
        known = {order.checksum.algorithm} if order.checksum else set()
        digests = Digests({*self._target.digests, *known})
        try:
            part = self._target.parts.open(order.task_id, order.url, digests)
            keep = False
            try:
                self._until_done(part, order, run)
                return part.size
            except TaskError as trouble:
                keep = trouble.keep
                raise
            finally:
                part.close(keep=keep)
        except OSError as error:
            raise errors.of_storage(error, order.key) from error

    def _check_bucket(self, order: TaskInput) -> None:
        # Whoever writes messages must not choose among all buckets we may write to.
        if order.bucket not in (None, self._target.bucket):
            raise TaskError("BucketRefused", "the task names another bucket than the target")

    def _until_done(self, part: PartialFile, order: TaskInput, run: RunningDownload) -> None:
        tries = RetryCounter(self._settings.attempts, self._settings.longest_wait_seconds)
        part.resume(any_boot=order.checksum is not None, chunk_read=partial(_reread, run))
        # A connection that served another file may bring that file's surplus bytes as ours.
        # Only a checksum proves that it did not: files of one size may have other bytes.
        alone = order.checksum is None
        while True:
            try:
                self._once(part, order, run, alone=alone)
                return
            except TaskError as trouble:
                if trouble.afresh:
                    self._handles.forget(order.job_id)
                wait = tries.wait_after(trouble, part.size)
                if trouble.afresh:
                    part.restart()
                alone = True  # what went wrong may have been the connection
                run.wait(wait)

    def _once(
        self, part: PartialFile, order: TaskInput, run: RunningDownload, *, alone: bool
    ) -> None:
        run.check()
        if not part.whole:
            self._downloader.fill(part, order, run, alone=alone)
        order.verify(part.size, part.digests)
        self._target.publish(part, order.key, run)

    def cancel(self, job_id: str) -> None:
        """End what runs for that job, within about a second. What it has stays for a while:
        a job is also called off where it moves to another process."""
        self._runs.stop(job_id)

    def close(self) -> None:
        """End all. What is half done waits for the next process. Twice is once."""
        if self._runs.close():
            self._handles.close()
            self._target.close()


def _failure(trouble: TaskError) -> Mapping[str, Any]:
    error = {"code": trouble.code, "message": trouble.message}
    return {"success": False, "bytesProcessed": 0, "error": error}


def _reread(run: RunningDownload, count: int) -> None:
    run.check()
    run.moved(count)


def _opened_target(settings: WorkSettings) -> ExportTarget:
    try:
        return _target(settings)
    except OSError as error:
        raise ConfigError(f"target {settings.target}: {error.strerror or error}") from error


def _target(settings: WorkSettings) -> ExportTarget:
    if settings.target.startswith("s3://"):
        from holdfast.adapters.aws.s3 import S3Target

        return S3Target(settings.target, settings.scratch)
    from holdfast.adapters.export.folder import FolderTarget

    return FolderTarget(settings.target, durable=settings.durable)
