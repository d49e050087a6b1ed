"""The directory of a queue, and the file operations that the queue uses in it.

Each call of `FsOps` is one step of the protocol. The crash tests kill the process before each
step, and the schedule tests interleave the steps.
"""

import errno
import fcntl
import json
import os
import secrets
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from holdfast.errors import HoldfastError, QueueUnavailable
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.file_modes import MODES, get_access

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_HEADERS = "user.holdfast.headers"
_BEAT = "user.holdfast.beat"
# O_NONBLOCK and O_NOFOLLOW, because a FIFO or a symlink that was put here must neither hang
# a worker nor lead it out of the queue.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FIRST_READ_BYTES = 4096
_MAX_MOVE_TRIES = 10  # tries to move into a folder that other processes may be removing
_MAX_SYNC_BATCH = 100  # files that are open at once
T = TypeVar("T")

_MISSING_ERRNOS = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
_MAX_JSON_DEPTH = 200  # more levels than a message may have


def refuse_xattr(*_: object) -> bytes:
    """Raise OSError, as a filesystem without extended attributes does."""
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


class FsOps:
    """Every file operation of a queue, in one place that tests can replace."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    symlink = staticmethod(os.symlink)
    readlink = staticmethod(os.readlink)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    stat = staticmethod(os.stat)
    access = staticmethod(os.access)
    chmod = staticmethod(os.chmod)
    fchmod = staticmethod(os.fchmod)
    utime = staticmethod(os.utime)
    flock = staticmethod(fcntl.flock)
    # Not on every system, and not on every filesystem.
    setxattr = staticmethod(getattr(os, "setxattr", refuse_xattr))
    getxattr = staticmethod(getattr(os, "getxattr", refuse_xattr))
    listdir: "staticmethod[[int], list[str]]" = staticmethod(os.listdir)

    @staticmethod
    def start_writing(fd: int) -> None:
        """Begin to write a file's bytes to the disk without waiting; this is only a hint."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def __init__(self, server_time: Callable[[], float] | None = None) -> None:
        self.server_time = server_time  # None: read it from the filesystem
        # Other processes release a lock in real time, whatever clock the queue uses.
        self.lock_clock: Clock = SYSTEM_CLOCK


class QueueDirectory:
    """The directory of one queue.

    Paths are relative to `folder`, and an open descriptor of it makes look-ups short. The
    mode of `folder` decides which users may use the files made inside it, see file_modes.py.
    """

    def __init__(self, folder: Path, fs: FsOps, *, durable: bool = False) -> None:
        self.folder = folder
        self.fs = fs
        self.durable = durable
        self.fd = fs.open(str(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._close_fd = weakref.finalize(self, os.close, self.fd)
        access = get_access(fs.stat(self.fd))
        self._shared, self._modes = access == "group", MODES[access]

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise errors of the filesystem as QueueUnavailable, with one clear line."""
        try:
            yield
        except OSError as error:
            raise to_queue_unavailable(self.folder, error) from error

    def close(self) -> None:
        """Close the folder. This also happens when the object is garbage-collected."""
        self._close_fd()
        self.fd = -1

    def write(self, path: str, body: bytes, headers: str | None = None) -> None:
        """Write a new file. No process reads it before it is moved to its place.

        The headers are an extended attribute, which a rename keeps and earlier versions
        ignore. A filesystem without such attributes drops them.
        """
        fd = self.fs.open(path, _WRITE, self._modes.file, dir_fd=self.fd)
        try:
            if self._shared:
                self._share(fd)
            written = self.fs.write(fd, body)
            while written < len(body):
                written += self.fs.write(fd, body[written:])
            if headers is not None:
                with suppress(OSError):
                    self.fs.setxattr(fd, _HEADERS, headers.encode())
        except BaseException:
            self.discard(path)  # otherwise a full disk would collect one file for each try
            raise
        finally:
            self.fs.close(fd)

    def read_headers(self, path: str) -> bytes | None:
        """Return the headers of a file, or None if it has none."""
        return self._read_attribute(path, _HEADERS)

    def read_beat(self, path: str) -> str:
        """Return the last beat that was kept with a file, or an empty text."""
        return (self._read_attribute(path, _BEAT) or b"").decode("ascii", "replace")

    def _read_attribute(self, path: str, name: str) -> bytes | None:
        with suppress(OSError), self.open_file(path, _READ) as fd:
            return bytes(self.fs.getxattr(fd, name))
        return None

    def note_beat(self, path: str, beat: str) -> None:
        """Keep a worker's beat with a file, if the filesystem has extended attributes."""
        with suppress(OSError), self.open_file(path, _READ) as fd:
            self.fs.setxattr(fd, _BEAT, beat.encode())

    def put(
        self, path: str, body: bytes, headers: str | None = None, aside: str | None = None
    ) -> None:
        """Make or replace a file in one step. If durable, its bytes survive a power cut.

        It is written as `aside` first, a name in tmp/ that no other file has.
        """
        aside = aside or f"tmp/{secrets.token_hex(12)}"
        try:
            self.write(aside, body, headers)
            if self.durable:
                self.sync(aside)
            if not self.rename(aside, path):
                self.publish(aside, path)  # its folder may have to be made again
        except BaseException:
            self.discard(aside)
            raise

    def discard(self, path: str) -> None:
        """Remove a file if possible. Errors are ignored, because an earlier one is raised."""
        with suppress(OSError):
            self.remove(path)

    @contextmanager
    def open_file(self, path: str, flags: int) -> Iterator[int]:
        """Open a file. A new file gets the mode of this queue's files."""
        fd = self.fs.open(path, flags, self._modes.file, dir_fd=self.fd)
        try:
            if self._shared and flags & os.O_CREAT:
                self._share(fd)
            yield fd
        finally:
            self.fs.close(fd)

    def _share(self, fd: int) -> None:
        with suppress(PermissionError):  # another user made it and gave it its mode
            self.fs.fchmod(fd, self._modes.file)

    def read(self, path: str, limit: int) -> bytes:
        """Return the bytes of a file.

        Raises FileNotFoundError, or ValueError if it is not a regular file or is larger
        than `limit`.
        """
        try:
            fd = self.fs.open(path, _READ, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise ValueError("not a regular file") from None
            raise
        try:
            body = self.fs.read(fd, _FIRST_READ_BYTES)
            return body if len(body) < _FIRST_READ_BYTES else self._read_rest(fd, body, limit)
        except (IsADirectoryError, BlockingIOError):
            raise ValueError("not a regular file") from None
        finally:
            self.fs.close(fd)

    def _read_rest(self, fd: int, body: bytes, limit: int) -> bytes:
        parts, size = [body], len(body)
        while chunk := self.fs.read(fd, 1 << 20):
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                raise ValueError(f"larger than {limit:,} bytes")
        return b"".join(parts)

    def append(self, path: str, line: bytes) -> None:
        """Add a line to a journal in one write."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
        with self.open_file(path, flags) as fd:
            self.fs.write(fd, line)

    def link(self, source: str, target: str) -> None:
        """Give a file or a symlink a second name. Raises FileExistsError if it is taken."""
        self.fs.link(
            source, target, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False
        )

    def rename(self, source: str, target: str, *, target_is_unique: bool = True) -> bool:
        """Compare and swap: rename a file, or return False if `source` is missing.

        A network filesystem may repeat a call whose response was lost. Then the source is
        missing because this process moved it, and the existing target proves that. It
        proves nothing if another process could make the very same move
        (`target_is_unique=False`).
        """
        try:
            self.fs.rename(source, target, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            if error.errno not in _MISSING_ERRNOS:
                raise
            return target_is_unique and self.exists(target)
        return True

    def move(self, source: str, target: str, *, target_is_unique: bool = True) -> bool:
        """Rename a file into a folder that may have to be made, or made again."""
        for _ in range(_MAX_MOVE_TRIES):
            if self.rename(source, target, target_is_unique=target_is_unique):
                return True
            if not self.exists(source):
                return False
            self.make_folder(os.path.dirname(target))
        raise OSError(errno.EBUSY, "its folder is removed as fast as it is made", target)

    def publish(self, aside: str, target: str) -> None:
        """Move a file that was written in tmp/ to its place."""
        if not self.move(aside, target):
            raise QueueUnavailable(
                f"queue {str(self.folder)!r}: tmp/ was emptied while something was written "
                "there: push again, or repeat what you did"
            )

    def exists(self, path: str) -> bool:
        """Return whether something has this path."""
        return self.stat(path) is not None

    def stat(self, path: str) -> os.stat_result | None:
        """Return the status of a file without following links; None if it is missing."""
        try:
            return self.fs.stat(path, dir_fd=self.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in _MISSING_ERRNOS:
                return None
            raise

    def make_folder(self, path: str) -> None:
        """Make a folder for tasks to move to, unless it exists.

        If durable, the folder is on the disk before anything moves there. Otherwise a power
        cut could lose the folder together with the tasks in it.
        """
        if self.mkdir(path) and self.durable:
            self.sync(os.path.dirname(path) or ".")

    def mkdir(self, path: str) -> bool:
        """Make a folder with the mode of this queue's folders; False if it exists."""
        made = True
        try:
            self.fs.mkdir(path, self._modes.folder, dir_fd=self.fd)
        except FileExistsError:
            self.require_folder(path)  # a symlink would lead tasks out of the queue
            made = False
        if self._shared:  # also a folder whose maker was killed before this step
            with suppress(PermissionError):
                self.fs.chmod(path, self._modes.folder, dir_fd=self.fd)
        return made

    def list_required(self, path: str) -> list[str]:
        """List one of the queue's own folders. Raises OSError if it is missing."""
        names = self.list(path)
        if not names:
            self.require_folder(path)
        return names

    def require_folder(self, path: str) -> None:
        """Raise OSError unless this is a folder."""
        if not is_folder(status := self.stat(path)):
            raise _make_folder_error(path, status)

    def refuse_links(self, *paths: str) -> None:
        """Raise OSError if one of these folders is a link, which leads out of the queue."""
        for path in paths:
            if (status := self.stat(path)) is not None and stat.S_ISLNK(status.st_mode):
                raise _make_folder_error(path, status)

    def list_readable(self, path: str) -> list[str]:
        """List a folder, or return [] if another user closed it, so that work continues."""
        try:
            return self.list(path)
        except PermissionError:
            return []

    def can_use(self, path: str) -> bool:
        """Return whether this process may list that folder and move files out of it."""
        return self.fs.access(path, os.R_OK | os.W_OK | os.X_OK, dir_fd=self.fd)

    def list(self, path: str) -> list[str]:
        """List the names in a folder, or return [] if it is missing or is a symlink."""
        try:
            fd = self.fs.open(path, _FOLDER, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (*_MISSING_ERRNOS, errno.ELOOP):
                return []
            raise
        try:
            return self.fs.listdir(fd)
        finally:
            self.fs.close(fd)

    def remove(self, path: str) -> bool:
        """Remove a file; return False if it is missing or is a folder."""
        try:
            self.fs.unlink(path, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (*_MISSING_ERRNOS, errno.EISDIR):
                return False
            raise
        return True

    def remove_folder(self, path: str) -> bool:
        """Remove a folder; return False if it is missing or not empty."""
        try:
            self.fs.rmdir(path, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (*_MISSING_ERRNOS, errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def sync(self, *paths: str) -> None:
        """Make files' bytes, or folders' entries, survive a power cut.

        Many files are opened and handed to the disk first, and waited for afterwards,
        because the disk writes a hundred files in about the time of one.
        """
        for start in range(0, len(paths), _MAX_SYNC_BATCH):
            self._sync(paths[start : start + _MAX_SYNC_BATCH])

    def _sync(self, paths: Sequence[str]) -> None:
        fds = [self.fs.open(p, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.fd) for p in paths]
        try:
            if len(fds) > 1:
                for fd in fds:
                    self.fs.start_writing(fd)
            for fd in fds:
                self.fs.fsync(fd)
        finally:
            for fd in fds:
                self.fs.close(fd)

    def read_json(self, path: str) -> dict[str, Any] | None:
        """Read a small JSON object; return None if it is missing, closed or not an object."""
        try:
            data = json.loads(self.read(path, 1 << 24))
        except (FileNotFoundError, PermissionError, ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) and not is_deep(data) else None


def is_deep(data: Any) -> bool:
    """Return whether JSON data is nested so deeply that it cannot be written again."""
    level = [data]
    for _ in range(_MAX_JSON_DEPTH):
        inner = [v.values() if isinstance(v, dict) else v for v in level]
        level = [v for values in inner for v in values if isinstance(v, dict | list)]
        if not level:
            return False
    return True


def is_folder(status: os.stat_result | None) -> bool:
    """Return whether a status is that of a folder."""
    return status is not None and stat.S_ISDIR(status.st_mode)


def _make_folder_error(path: str, status: os.stat_result | None) -> OSError:
    if status is None:
        return NotADirectoryError(errno.ENOTDIR, f"its folder {path!r} is gone", path)
    if stat.S_ISLNK(status.st_mode):
        return OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return NotADirectoryError(errno.ENOTDIR, f"{path!r} is not a folder", path)


_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space (`holdfast purge` removes completed work)",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EROFS: "the filesystem is read-only: mount it writable or use another folder",
    errno.EACCES: "permission denied: check owner and mode of the folder (`holdfast doctor`)",
    errno.EPERM: "not permitted: check owner and mode of the folder (`holdfast doctor`)",
    errno.EXDEV: "its folders are on different filesystems, so nothing can be renamed "
    "between them: put the whole queue on one",
    errno.ENOTDIR: "{text}: put a folder there; a push makes a missing one again",
    errno.ELOOP: "{path!r} in it is a symbolic link, which would lead messages out of the "
    "queue: put a folder in its place",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
}


def to_queue_unavailable(folder: Path, error: OSError) -> HoldfastError:
    """Return one clear line, with its remedy, for an error of the filesystem."""
    template = _REMEDIES.get(error.errno or 0, "{text}")
    text = template.format(path=error.filename, text=error.strerror or str(error))
    return QueueUnavailable(f"queue {str(folder)!r}: {text}")
