"""Half-done files: hidden, one for each task, found again by whoever does the task next.

    <folder>/<task>.part              the bytes so far, locked by whoever adds to them
    <folder>/<task>.part.json         what they are the beginning of
    <folder>/<task>.<random>.part     when the first is locked: a second process is at it

A process that is killed leaves its lock with the kernel, which drops it, and its bytes to
the next. Two at the same task never share a file, so neither can spoil the other's.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from holdfast.adapters.export.checksums import Digests
from holdfast.adapters.modes import make_folders

_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OURS = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[0-9a-f]{16})?\.part(\.json)?")
_CHUNK = 1 << 20
_WORTH_NOTING = 1 << 20  # a file below that is fetched anew sooner than its note is written
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe in place of a note would make us wait for its other end.
_NOTE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PartialFiles:
    """The folder of half-done files. Safe for threads and processes."""

    def __init__(self, folder: str) -> None:
        """Made if it is not there. A link in its place is refused: OSError."""
        make_folders(Path(folder))
        self.fd = os.open(folder, _FOLDER)

    def open(self, task_id: str, url: str, digests: Digests) -> "PartialFile":
        """The task's part, with what is there of it; a private one while that is in use."""
        stem = task_id if _PLAIN_ID.fullmatch(task_id) else _hash(task_id)
        while True:
            # By the umask, as it is published by a rename; until then its folder hides it.
            fd = os.open(f"{stem}.part", _FILE | os.O_CREAT, 0o666, dir_fd=self.fd)
            if not _locked(fd):
                os.close(fd)
                return self._private(stem, url, digests)
            # It may have been published, or removed, between our open and our lock. Then
            # this is a finished file: to write to it would spoil what people see.
            if _is_at(fd, f"{stem}.part", self.fd):
                return PartialFile(
                    self.fd, f"{stem}.part", fd, _hash(url), digests, shared=True
                )
            os.close(fd)

    def _private(self, stem: str, url: str, digests: Digests) -> "PartialFile":
        while True:
            name = f"{stem}.{secrets.token_hex(8)}.part"
            fd = os.open(name, _FILE | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=self.fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # a sweeper, which may be frozen: take another name
                os.close(fd)
                continue
            except OSError:
                pass  # no locks here, so it is not swept either
            if _is_at(fd, name, self.fd):  # not swept before it was locked
                return PartialFile(self.fd, name, fd, _hash(url), digests, shared=False)
            os.close(fd)

    def sweep(self, older_than: float) -> int:
        """Remove what nobody works on: private parts, and all that were last written
        before `older_than`, in seconds since the epoch. How many there were."""
        return sum(self._swept(name, older_than) for name in os.listdir(self.fd))

    def _swept(self, name: str, older_than: float) -> bool:
        match = _OURS.fullmatch(name)
        try:
            if match is None or not (match[1] or self._changed(name) < older_than):
                return False
            fd = os.open(name, _FILE, dir_fd=self.fd)
            try:
                if not _locked(fd):
                    return False
                os.unlink(name, dir_fd=self.fd)
                return True
            finally:
                os.close(fd)
        except OSError:  # somebody else was quicker, or it is no file: not ours to judge
            return False

    def _changed(self, name: str) -> float:
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mtime

    def close(self) -> None:
        os.close(self.fd)


class PartialFile:
    """One half-done file, locked.

    `validator` says which version of the file the bytes are of, `length` how long it is in
    all; None: nobody said. `whole`: all bytes are there.
    """

    def __init__(
        self, folder: int, name: str, fd: int, url_hash: str, digests: Digests, *, shared: bool
    ) -> None:
        self.folder = folder
        self.name = name
        self.fd = fd
        self.digests = digests
        self.size = 0
        self.validator: str | None = None
        self.length: int | None = None
        self.whole = False
        self._url_hash = url_hash
        self._shared = shared
        self._noted = False
        self._gone = False  # its name may be another process's part by now

    def resume(self, *, any_boot: bool, chunk_read: Callable[[int], None]) -> None:
        """Go on behind what an earlier process left, if that can be trusted; or from zero.

        After a power cut a file may have its size and not its bytes. Only a checksum can
        tell: without one, `any_boot` is False and only bytes of this boot count.
        """
        self._noted = self._shared  # there may be a useless one, which must go as well
        note = self._note() if self._shared and os.fstat(self.fd).st_size else {}
        if not note or not (any_boot or _of_this_boot(note)):
            self.restart()
            return
        for data in self._reading():
            self.digests.update(data)
            self.size += len(data)
            chunk_read(len(data))
        self.validator, self.length = note["validator"], note["length"]
        self.whole = self.size == self.length

    def _reading(self) -> Iterator[bytes]:
        os.lseek(self.fd, 0, os.SEEK_SET)
        while data := os.read(self.fd, _CHUNK):
            yield data

    def _note(self) -> dict[str, Any]:
        try:
            fd = os.open(f"{self.name}.json", os.O_RDONLY | _NOTE, dir_fd=self.folder)
            with open(fd, "rb") as file:
                note = json.loads(os.read(file.fileno(), _CHUNK))
        except (OSError, ValueError, RecursionError):
            return {}
        return note if _is_note(note) and note["url"] == self._url_hash else {}

    def begin(self, validator: str | None, length: int | None) -> None:
        """The bytes that follow are of this version."""
        self.validator, self.length = validator, length

    def write(self, data: bytes) -> None:
        """Add bytes. Those that were written before an OSError stay."""
        self.digests.update(data)
        view = memoryview(data)
        while view:
            written = os.write(self.fd, view)
            self.size += written
            view = view[written:]
        if not self._noted and self.size >= _WORTH_NOTING:
            self.note_down()

    def note_down(self) -> None:
        """Leave word for the next process. Half a note is none: then it starts at zero."""
        if not self._shared or not self.validator:
            return
        note = {
            "url": self._url_hash,
            "validator": self.validator,
            "length": self.length,
            "boot": _boot_id(),
        }
        self._noted = True  # whatever becomes of it: half a note has to be removed too
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _NOTE
        fd = os.open(f"{self.name}.json", flags, 0o600, dir_fd=self.folder)
        with open(fd, "wb") as file:
            file.write(json.dumps(note).encode())

    def restart(self) -> None:
        """Forget all bytes. The note goes last: without bytes it says nothing."""
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.digests.restart()
        self.size, self.validator, self.length, self.whole = 0, None, None, False
        self._forget_note()

    def _forget_note(self) -> None:
        if self._shared and self._noted:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.name}.json", dir_fd=self.folder)
        self._noted = False

    def published(self) -> None:
        """Its bytes have another name now."""
        self._gone = True
        self._forget_note()

    def remove(self) -> None:
        """Nobody can use it. The note goes first, as long as the name is ours."""
        self._forget_note()
        self._gone = True
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.name, dir_fd=self.folder)

    def close(self, *, keep: bool) -> None:
        """Let go of it; `keep` what the next process can use."""
        try:
            if keep and self._shared and self.size and self.validator:
                self.note_down()
            elif not self._gone:
                self.remove()
        finally:
            os.close(self.fd)


def _locked(fd: int) -> bool:
    """Is it ours alone now? A file system without locks answers no."""
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
    """Has it all that a note has? A validator is sent back to the server in a header."""
    match value:
        case {"url": str(), "validator": str(validator), "length": length}:
            known = length is None or (type(length) is int and length >= 0)
            return known and validator != "" and validator.isprintable()
    return False


def _of_this_boot(note: dict[str, Any]) -> bool:
    return note.get("boot") == _boot_id() != ""


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
