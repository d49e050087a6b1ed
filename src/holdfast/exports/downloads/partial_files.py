"""Partial files: hidden, one for each task, so that the next process can continue them.

    <folder>/<task>.part              the bytes so far, locked by the process that adds to them
    <folder>/<task>.part.json         the resume note: the file that the bytes belong to
    <folder>/<task>.<random>.part     used while a second process has locked the first

When a process is killed, the kernel drops its lock, and the next process continues with its
bytes. Two processes at the same task never share a file, so neither can corrupt the other's.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from holdfast.exports.downloads.task import Digests
from holdfast.store.file_modes import make_folders

_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OWN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(?P<private>\.[0-9a-f]{16})?\.part(\.json)?")
_CHUNK = 1 << 20
_MIN_NOTE_BYTES = 1 << 20  # a smaller file is downloaded again faster than its note is written
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a pipe in place of a note would make the process wait for its other end.
_NOTE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PartialFiles:
    """The folder of partial files. Safe for threads and processes."""

    def __init__(self, folder: str) -> None:
        """Open the folder; make it if it is missing. Raises OSError for a link."""
        make_folders(Path(folder))
        self.fd = os.open(folder, _FOLDER)

    def open(self, task_id: str, url: str, digests: Digests) -> "PartialFile":
        """Open the task's part with its bytes so far, or a private part while it is in use."""
        stem = task_id if _PLAIN_ID.fullmatch(task_id) else _hash(task_id)
        while True:
            # Its mode follows the umask, because a rename publishes this file. Until then
            # its folder hides it.
            fd = os.open(f"{stem}.part", _FILE | os.O_CREAT, 0o666, dir_fd=self.fd)
            if not _try_lock(fd):
                os.close(fd)
                return self._open_private(stem, url, digests)
            # It may have been published or removed between open and lock. Then this is a
            # finished file, and to write to it would corrupt what readers see.
            if _is_at(fd, f"{stem}.part", self.fd):
                return PartialFile(self.fd, f"{stem}.part", fd, url, digests, shared=True)
            os.close(fd)

    def _open_private(self, stem: str, url: str, digests: Digests) -> "PartialFile":
        while True:
            name = f"{stem}.{os.urandom(8).hex()}.part"
            fd = os.open(name, _FILE | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=self.fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # a sweep locked it and may be frozen: take another name
                os.close(fd)
                continue
            except OSError:
                pass  # locks do not work here, so a sweep does not remove it either
            if _is_at(fd, name, self.fd):  # no sweep removed it before it was locked
                return PartialFile(self.fd, name, fd, url, digests, shared=False)
            os.close(fd)

    def sweep(self, older_than: float) -> int:
        """Remove unlocked files: private parts, and those last written before `older_than`.

        `older_than` is in seconds since the epoch. Returns how many files were removed.
        """
        return sum(self._sweep_file(name, older_than) for name in os.listdir(self.fd))

    def _sweep_file(self, name: str, older_than: float) -> bool:
        match = _OWN_NAME.fullmatch(name)
        try:
            if match is None or not (match["private"] or self._read_mtime(name) < older_than):
                return False
            fd = os.open(name, _FILE, dir_fd=self.fd)
            try:
                if not _try_lock(fd):
                    return False
                os.unlink(name, dir_fd=self.fd)
                return True
            finally:
                os.close(fd)
        except OSError:  # another process removed it first, or it is not a regular file
            return False

    def _read_mtime(self, name: str) -> float:
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mtime

    def close(self) -> None:
        """Close the folder."""
        os.close(self.fd)


class PartialFile:
    """One partial file, locked.

    `validator` names the version of the file that the bytes belong to, and `length` is its
    size; each is None if the server did not send it. `complete`: all bytes are on disk.
    """

    def __init__(
        self, folder: int, name: str, fd: int, url: str, digests: Digests, *, shared: bool
    ) -> None:
        self.folder = folder
        self.name = name
        self.fd = fd
        self.digests = digests
        self.size = 0
        self.validator: str | None = None
        self.length: int | None = None
        self.complete = False
        self._url = url
        self._shared = shared
        self._has_note = shared  # a useless note may exist, which must be removed too
        # Whether this name was given up. Then it may be another process's part by now.
        self._has_released_name = False

    def resume(self, *, trust_other_boots: bool, on_chunk: Callable[[int], None]) -> None:
        """Continue after the bytes of an earlier process if they can be trusted, or at zero.

        After a power cut a file may have its size but not its bytes. Only a checksum shows
        the difference. Without one, `trust_other_boots` is False, and only bytes that were
        written since this boot are trusted.
        """
        if not os.fstat(self.fd).st_size:
            self._remove_note()
            return
        note = self._read_note() if self._shared else {}
        if not note or not (trust_other_boots or _is_of_this_boot(note)):
            self.restart()
            return
        for data in self._read_chunks():
            self.digests.update(data)
            self.size += len(data)
            on_chunk(len(data))
        self.validator, self.length = note["validator"], note["length"]
        self.complete = self.size == self.length

    def _read_chunks(self) -> Iterator[bytes]:
        os.lseek(self.fd, 0, os.SEEK_SET)
        while data := os.read(self.fd, _CHUNK):
            yield data

    def _read_note(self) -> dict[str, Any]:
        try:
            fd = os.open(f"{self.name}.json", os.O_RDONLY | _NOTE, dir_fd=self.folder)
            with open(fd, "rb") as file:
                note = json.loads(os.read(file.fileno(), _CHUNK))
        except (OSError, ValueError, RecursionError):
            return {}
        return note if _is_note(note) and note["url"] == _hash(self._url) else {}

    def begin(self, validator: str | None, length: int | None) -> None:
        """Set the version of the file that the following bytes belong to."""
        self.validator, self.length = validator, length

    def write(self, data: memoryview) -> None:
        """Add bytes. Those that were written before an OSError stay."""
        self.digests.update(data)
        while data:
            written = os.write(self.fd, data)
            self.size += written
            data = data[written:]
        if not self._has_note and self.size >= _MIN_NOTE_BYTES:
            self.write_resume_note()

    def write_resume_note(self) -> None:
        """Write the note from which the next process resumes.

        An incomplete resume note is ignored, and the next process starts at zero.
        """
        if not self._shared or not self.validator:
            return
        note = {
            "url": _hash(self._url),  # not the URL, which may hold a signature
            "validator": self.validator,
            "length": self.length,
            "boot": read_boot_id(),
        }
        self._has_note = True  # even if writing fails: an incomplete note must be removed too
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NOTE
        fd = os.open(f"{self.name}.json", flags, 0o600, dir_fd=self.folder)
        with open(fd, "wb") as file:
            file.write(json.dumps(note).encode())

    def restart(self) -> None:
        """Remove all bytes, and then the note, which means nothing without bytes."""
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.digests.restart()
        self.size, self.validator, self.length, self.complete = 0, None, None, False
        self._remove_note()

    def _remove_note(self) -> None:
        if self._shared and self._has_note:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.name}.json", dir_fd=self.folder)
        self._has_note = False

    def mark_published(self) -> None:
        """Note that the file has its final name now, and remove the resume note."""
        self._has_released_name = True
        self._remove_note()

    def remove(self) -> None:
        """Remove the file. The note goes first, while the name still belongs to this part."""
        self._remove_note()
        self._has_released_name = True
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.folder)

    def close(self, *, keep: bool) -> None:
        """Close the file. With `keep`, leave the bytes that the next process can use."""
        try:
            if keep and self._shared and self.size and self.validator:
                self.write_resume_note()
            elif not self._has_released_name:
                self.remove()
        finally:
            os.close(self.fd)


def _try_lock(fd: int) -> bool:
    """Lock the file; return False if it is locked, or if the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(fd: int, name: str, folder: int) -> bool:
    try:
        return os.path.samestat(
            os.fstat(fd), os.stat(name, dir_fd=folder, follow_symlinks=False)
        )
    except FileNotFoundError:
        return False


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def _is_note(value: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a complete note.

    Its validator must be printable, because it is sent to the server in a header.
    """
    match value:
        case {"url": str(), "validator": str(validator), "length": length}:
            is_length = length is None or (type(length) is int and length >= 0)
            return is_length and validator != "" and validator.isprintable()
    return False


def _is_of_this_boot(note: dict[str, Any]) -> bool:
    return note.get("boot") == read_boot_id() != ""


def read_boot_id() -> str:
    """Return the id of this boot, or an empty text if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
