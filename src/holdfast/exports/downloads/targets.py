"""The targets of exports, and the one that is a folder.

A file is visible under its name only when it is complete. Partial files are inside of the
target folder, so that a rename within one file system publishes them. The path to the name is
walked folder by folder without following links, so a process that can write into the target
cannot make an export write outside of it.

A file is published with the mark of its task. If the process is killed before the result is
counted, the next attempt finds the mark, and the task is completed even if its server does
not have the file any more.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Protocol

from holdfast.errors import ConfigError
from holdfast.exports.downloads.partial_files import PartialFile, PartialFiles, read_boot_id
from holdfast.exports.downloads.task import RunningDownload, TaskInput
from holdfast.exports.file_names import OWN_FOLDER
from holdfast.urls import TARGETS, parse_url

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without O_NONBLOCK, a pipe in place of the file would make the process wait for its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MARK = "user.holdfast.task"


class ExportTarget(Protocol):
    """The place where files are published. It needs the `digests` of each file."""

    partial_files: PartialFiles
    digests: tuple[str, ...]
    bucket: str | None

    def publish(self, part: PartialFile, key: str, run: RunningDownload) -> None:
        """Publish the complete, verified part with the mark of its task.

        It gets its name in one step or not at all.
        """

    def find_published(self, task: TaskInput) -> int | None:
        """Return the size of the file that an earlier attempt at the task published, or None.

        A file of any other task, or one that was changed since, is not found.
        """

    def close(self) -> None:
        """Release the target's resources."""


def open_target(location: str, scratch: str, *, durable: bool) -> ExportTarget:
    """Open the target, a folder or s3://bucket/prefix. Raises ConfigError."""
    try:
        if parse_url(location, TARGETS).scheme == "s3":
            # Only here, because each worker would need a third of its start to import it.
            from holdfast.exports.downloads.s3_target import S3Target

            return S3Target(location, scratch)
        return FolderTarget(location, durable=durable)
    except OSError as error:
        raise ConfigError(f"target {location}: {error.strerror or error}") from error


class FolderTarget:
    """An export target on disk. Safe for threads and processes.

    `durable`: published files survive a power cut.
    """

    digests: tuple[str, ...] = ()
    bucket: str | None = None

    def __init__(self, path: str, *, durable: bool) -> None:
        """Open the folder; make it if it is missing. Raises OSError."""
        os.makedirs(path, exist_ok=True)
        self._root = os.open(path, _FOLDER)
        self._durable = durable
        self.partial_files = PartialFiles(os.path.join(path, OWN_FOLDER))

    def publish(self, part: PartialFile, key: str, run: RunningDownload) -> None:
        """Give the part its name, and replace a file that has it. Raises OSError."""
        run.check()
        *folders, name = key.split("/")
        if self._durable:
            os.fsync(part.fd)
        with contextlib.suppress(OSError, AttributeError):  # not every file system has them
            os.setxattr(part.fd, _MARK, self._make_mark(part.fd, run.task))
        with self._walk(folders, make=True) as folder:
            os.rename(part.name, name, src_dir_fd=part.folder, dst_dir_fd=folder)
            if self._durable:
                os.fsync(folder)
        part.mark_published()

    def find_published(self, task: TaskInput) -> int | None:
        """Return the size of the file that an earlier attempt at the task published, or None.

        Without extended attributes there is no mark, and nothing is found.
        """
        *folders, name = task.key.split("/")
        try:
            with self._walk(folders, make=False) as folder:
                fd = os.open(name, _FILE, dir_fd=folder)
        except OSError:
            return None
        try:
            is_own = os.getxattr(fd, _MARK) == self._make_mark(fd, task)
            return os.fstat(fd).st_size if is_own else None
        except (OSError, AttributeError):
            return None
        finally:
            os.close(fd)

    def _make_mark(self, fd: int, task: TaskInput) -> bytes:
        """Return the mark of a file, so short that it needs no block of its own on disk.

        The size and the time show whether the file was changed since. After a power cut a
        file that was not synced may have its size but not its bytes, so the mark is of this
        boot.
        """
        stat = os.fstat(fd)
        boot = "" if self._durable else read_boot_id()
        facts = f"{task.mark} {stat.st_size} {stat.st_mtime_ns} {boot}"
        return hashlib.sha256(facts.encode()).digest()[:16]

    @contextlib.contextmanager
    def _walk(self, folders: Sequence[str], *, make: bool) -> Iterator[int]:
        """Lend a descriptor of the innermost folder; `make` the folders that are missing."""
        at = os.dup(self._root)
        try:
            for name in folders:
                below = self._enter(at, name, make)
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)

    def _enter(self, at: int, name: str, make: bool) -> int:
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=at)
                if self._durable:
                    os.fsync(at)
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)

    def close(self) -> None:
        """Close the folder and its partial files."""
        self.partial_files.close()
        os.close(self._root)
