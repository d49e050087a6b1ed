"""A folder and the few things the queue does to files below it."""

import errno
import json
import os
import secrets
import stat
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.modes import MODES, access_of
from holdfast.core.errors import HoldfastError, QueueUnavailable

_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# Not blocking and not following: a FIFO or a symlink that somebody dropped here must
# neither hang a worker nor lead it out of the queue.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_MODEST = 4096
_TRIES = 10  # to use a folder that others may be removing
_SYNCED_TOGETHER = 100  # open files
_GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
_DEEPEST = 200  # levels of JSON; deeper than a message may be


class QueueDirectory:
    """Paths are relative to `folder`; its descriptor keeps look-ups short.

    The mode of `folder` says who may use what is made below it: see modes.py.
    """

    def __init__(self, folder: Path, fs: FsOps, *, durable: bool = False) -> None:
        self.folder = folder
        self.fs = fs
        self.durable = durable
        self.fd = fs.open(str(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._let_go = weakref.finalize(self, os.close, self.fd)
        access = access_of(fs.stat(self.fd))
        self._shared, self._modes = access == "group", MODES[access]

    def close(self) -> None:
        """Let go of the folder; also done when nobody holds this any more."""
        self._let_go()
        self.fd = -1

    def write(self, path: str, body: bytes) -> None:
        """Make a new file. Nobody looks at it before it is moved to its place."""
        fd = self.open_file(path, _WRITE)
        try:
            written = self.fs.write(fd, body)
            while written < len(body):
                written += self.fs.write(fd, body[written:])
        except BaseException:
            self.discard(path)  # or a full disk would collect an empty file for each try
            raise
        finally:
            self.fs.close(fd)

    def put(self, path: str, body: bytes) -> None:
        """Make or replace a file in one step; where power cuts count, its bytes last."""
        aside = f"tmp/{secrets.token_hex(12)}"
        self.write(aside, body)
        try:
            if self.durable:
                self.sync(aside)
            self.publish(aside, path)
        except BaseException:
            self.discard(aside)
            raise

    def discard(self, path: str) -> None:
        """Remove a file if that is possible; what failed before is the error to tell."""
        with suppress(OSError):
            self.remove(path)

    def open_file(self, path: str, flags: int) -> int:
        """Open a file for writing; one that is made has the mode of this queue's files."""
        fd = self.fs.open(path, flags, self._modes.file, dir_fd=self.fd)
        if self._shared:
            try:
                self._share(fd)
            except BaseException:
                self.fs.close(fd)
                raise
        return fd

    def _share(self, fd: int) -> None:
        with suppress(PermissionError):  # another user made it, and gave it its mode
            self.fs.fchmod(fd, self._modes.file)

    def read(self, path: str, limit: int) -> bytes:
        """Raises FileNotFoundError, or ValueError for what is no readable, modest file."""
        try:
            fd = self.fs.open(path, _READ, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise ValueError("not a regular file") from None
            raise
        try:
            body = self.fs.read(fd, _MODEST)
            return body if len(body) < _MODEST else self._read_on(fd, body, limit)
        except (IsADirectoryError, BlockingIOError):
            raise ValueError("not a regular file") from None
        finally:
            self.fs.close(fd)

    def _read_on(self, fd: int, body: bytes, limit: int) -> bytes:
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
        fd = self.open_file(path, flags)
        try:
            self.fs.write(fd, line)
        finally:
            self.fs.close(fd)

    def link(self, source: str, target: str) -> None:
        """A second name for a file or a symlink; FileExistsError when the name is taken."""
        self.fs.link(
            source, target, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False
        )

    def rename(self, source: str, target: str, *, only_ours: bool = True) -> bool:
        """The compare-and-swap: False when `source` is not there (any more).

        A network filesystem may repeat a call whose answer was lost; then the source is
        gone because we moved it ourselves, and our own target is the proof. It is none
        where somebody else could make the very same move (`only_ours=False`).
        """
        try:
            self.fs.rename(source, target, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return only_ours and self.exists(target)
        return True

    def move(self, source: str, target: str, *, only_ours: bool = True) -> bool:
        """`rename` into a folder that may have to be made, or made again."""
        for _ in range(_TRIES):
            if self.rename(source, target, only_ours=only_ours):
                return True
            if not self.exists(source):
                return False
            self.make(os.path.dirname(target))
        raise OSError(errno.EBUSY, "its folder is removed as fast as it is made", target)

    def publish(self, aside: str, target: str) -> None:
        """Give its place to what was written aside in tmp/."""
        if not self.move(aside, target):
            raise QueueUnavailable(
                f"queue {str(self.folder)!r}: tmp/ was emptied while something was written "
                "there: push again, or repeat what you did"
            )

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def stat(self, path: str) -> os.stat_result | None:
        try:
            return self.fs.stat(path, dir_fd=self.fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def make(self, path: str) -> None:
        """Make a folder, unless it is there, for tasks to move to.

        Where power cuts count it is on the disk before anything moves there: or that
        would have moved nowhere.
        """
        if self.mkdir(path) and self.durable:
            self.sync(os.path.dirname(path) or ".")

    def mkdir(self, path: str) -> bool:
        """Make a folder with the mode of this queue's folders; False when it is there."""
        made = True
        try:
            self.fs.mkdir(path, self._modes.folder, dir_fd=self.fd)
        except FileExistsError:
            self.need(path)  # a link would lead tasks out of the queue
            made = False
        if self._shared:  # also one whose maker was killed before it came this far
            with suppress(PermissionError):
                self.fs.chmod(path, self._modes.folder, dir_fd=self.fd)
        return made

    def list_fixed(self, path: str) -> list[str]:
        """Names in one of the queue's own folders, which must be there."""
        self.need(path)
        return self.list(path)

    def need(self, path: str) -> None:
        """Raise unless this is a folder."""
        if (status := self.stat(path)) is None or not is_folder(status):
            raise _no_folder(path, status)

    def refuse_links(self, *paths: str) -> None:
        """Raise if one of these folders is a link, which leads out of the queue."""
        for path in paths:
            if (status := self.stat(path)) is not None and stat.S_ISLNK(status.st_mode):
                raise _no_folder(path, status)

    def list_readable(self, path: str) -> list[str]:
        """`list`, but none of a folder that another user closed: other work goes on."""
        try:
            return self.list(path)
        except PermissionError:
            return []

    def can_use(self, path: str) -> bool:
        """May this process list that folder, and move files out of it?"""
        return self.fs.access(path, os.R_OK | os.W_OK | os.X_OK, dir_fd=self.fd)

    def list(self, path: str) -> list[str]:
        """Names in a folder; none when it is gone, or a link that leads elsewhere."""
        try:
            fd = self.fs.open(path, _FOLDER, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (*_GONE, errno.ELOOP):
                return []
            raise
        try:
            return self.fs.listdir(fd)
        finally:
            self.fs.close(fd)

    def remove(self, path: str) -> bool:
        try:
            self.fs.unlink(path, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (*_GONE, errno.EISDIR):
                return False
            raise
        return True

    def remove_folder(self, path: str) -> bool:
        """True when it was empty and is gone."""
        try:
            self.fs.rmdir(path, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (*_GONE, errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def sync(self, *paths: str) -> None:
        """Make files' bytes, or folders' entries, survive a power cut.

        Many are opened and handed to the disk first, then waited for: the disk does a
        hundred files in about the time of one.
        """
        for start in range(0, len(paths), _SYNCED_TOGETHER):
            self._sync(paths[start : start + _SYNCED_TOGETHER])

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
        """A small JSON object, or None when it is gone, closed or something else."""
        try:
            data = json.loads(self.read(path, 1 << 24))
        except (FileNotFoundError, PermissionError, ValueError, RecursionError):
            return None
        return data if isinstance(data, dict) and not is_deep(data) else None


def is_deep(data: Any) -> bool:
    """Is this JSON nested so deeply that it cannot be written out again?"""
    level = [data]
    for _ in range(_DEEPEST):
        inner = [v.values() if isinstance(v, dict) else v for v in level]
        level = [v for values in inner for v in values if isinstance(v, dict | list)]
        if not level:
            return False
    return True


def is_folder(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode)


def _no_folder(path: str, status: os.stat_result | None) -> OSError:
    is_link = status is not None and stat.S_ISLNK(status.st_mode)
    code = errno.ELOOP if is_link else errno.ENOTDIR
    return OSError(code, os.strerror(code), path)


_WAY_OUT = {
    errno.ENOSPC: "the disk is full: free some space (`holdfast purge` removes completed work)",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.EROFS: "the filesystem is read-only: mount it writable or use another folder",
    errno.EACCES: "permission denied: check owner and mode of the folder (`holdfast doctor`)",
    errno.EPERM: "not permitted: check owner and mode of the folder (`holdfast doctor`)",
    errno.EXDEV: "its folders are on different filesystems, so nothing can be renamed "
    "between them: put the whole queue on one",
    errno.ENOTDIR: "one of its folders is gone, or something else is in its place: put it "
    "back, or push to make it anew (`holdfast doctor` tells which)",
    errno.ELOOP: "{path!r} in it is a symbolic link, which would lead messages out of the "
    "queue: put a folder in its place",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
}


def explained(folder: Path, error: OSError | HoldfastError) -> HoldfastError:
    return error if isinstance(error, HoldfastError) else unavailable(folder, error)


def unavailable(folder: Path, error: OSError) -> HoldfastError:
    """One clear line for an error of the filesystem."""
    why = _WAY_OUT.get(error.errno or 0, "{text}")
    text = why.format(path=error.filename, text=error.strerror or str(error))
    return QueueUnavailable(f"queue {str(folder)!r}: {text}")
