"""The disk as SQLite sees it: what it writes and syncs, and failures.

SQLite reaches its files through a table of functions (its VFS). Here a copy of that table is
registered in which xOpen, xWrite, xTruncate, xSync and xDelete go through Python. Everything
else, locks and shared memory included, is SQLite's own. This needs a Python whose sqlite3
module uses the shared library of SQLite.

With the first sync of a journal or log after its opening SQLite syncs the folder, too. (Only
strace shows that; it is noted here as a sync of the folder.)
"""

import ctypes
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import pytest

IOERR_WRITE, IOERR_FSYNC = 778, 1034
FOLDER = "."
_CREATES, _IS_LOG = 0x4, 0x80800  # flags of xOpen

# The name is a pointer, because SQLite keeps it and reads what is behind it.
_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
_DELETE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_WRITE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)


class _Vfs(ctypes.Structure):
    _fields_ = (
        *[(name, c_int) for name in ("iVersion", "szOsFile", "mxPathname")],
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        ("xOpen", c_void_p),
        ("xDelete", c_void_p),
        ("others", c_void_p * 14),
    )


class _Methods(ctypes.Structure):
    _fields_ = (
        ("iVersion", c_int),
        *[(name, c_void_p) for name in ("xClose", "xRead", "xWrite", "xTruncate", "xSync")],
        ("others", c_void_p * 13),
    )


class Op(NamedTuple):
    """One change that SQLite asked for."""

    kind: str  # write, truncate, sync or delete
    name: str  # of the file
    offset: int = 0
    data: bytes = b""


Image = dict[str, bytes]
"""The content of each file by its name."""


@dataclass
class Disk:
    """What SQLite did to the files of one folder since `watch` began."""

    folder: Path | None  # None: every folder, and what SQLite does is not recorded
    ops: list[Op] = field(default_factory=list)
    base: Image = field(default_factory=dict)
    fail: Callable[[Op], int] = lambda op: 0
    """Return the code with which a call fails, or 0. A call that fails is not made."""


# -- the table of functions


# How each is called, and what is recorded of it.
_WATCHED_METHODS: dict[str, tuple[Any, Callable[..., Op]]] = {
    "xWrite": (
        _WRITE,
        lambda name, data, size, offset: Op(
            "write", name, offset, ctypes.string_at(data, size)
        ),
    ),
    "xTruncate": (_TRUNCATE, lambda name, size: Op("truncate", name, size)),
    "xSync": (_SYNC, lambda name, flags: Op("sync", name)),
}


class _Watched:
    """SQLite's own table of functions, with some of them watched."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libsqlite3.so.0")
        self._find = self._library.sqlite3_vfs_find
        self._find.restype = POINTER(_Vfs)
        self._real = self._find(None).contents
        self._vfs = _Vfs.from_buffer_copy(self._real)
        self._vfs.zName = b"watched"
        self._lock = Lock()
        self._paths: dict[int, Path] = {}  # of open files, by their address
        self._unsynced: set[int] = set()  # whose first sync will sync the folder, too
        self._methods: dict[int, tuple[Any, ...]] = {}  # ours by the address of SQLite's
        self._keep = (_OPEN(self._open), _DELETE(self._delete))  # or they would be freed
        self._vfs.xOpen, self._vfs.xDelete = (
            ctypes.cast(function, c_void_p).value for function in self._keep
        )
        self.disk: Disk | None = None

    def register(self) -> None:
        assert self._library.sqlite3_vfs_register(byref(self._vfs), 1) == 0

    def unregister(self) -> None:
        assert self._library.sqlite3_vfs_unregister(byref(self._vfs)) == 0

    def _open(self, vfs: int, name: int | None, file: int, flags: int, out: Any) -> int:
        code = _OPEN(self._real.xOpen)(ctypes.addressof(self._real), name, file, flags, out)
        if code == 0 and name is not None:
            self._paths[file] = _read_path(name)
            if flags & _CREATES and flags & _IS_LOG:
                self._unsynced.add(file)
            address = c_void_p.from_address(file)  # the file begins with its functions
            address.value = ctypes.addressof(self._watch(address.value or 0))
        return code

    def _watch(self, address: int) -> _Methods:
        if address not in self._methods:
            real = _Methods.from_address(address)
            watched, keep = _Methods.from_buffer_copy(real), []
            for name, (kind, make_op) in _WATCHED_METHODS.items():
                function = kind(self._make_method(kind(getattr(real, name)), make_op))
                setattr(watched, name, ctypes.cast(function, c_void_p).value)
                keep.append(function)
            self._methods[address] = (watched, keep)
        methods: _Methods = self._methods[address][0]
        return methods

    def _make_method(
        self, real: Callable[..., int], make_op: Callable[..., Op]
    ) -> Callable[..., int]:
        def call(file: int, *arguments: int) -> int:
            path = self._paths[file]
            op = make_op(path.name, *arguments)
            code = self._call(path, op, lambda: real(file, *arguments))
            if op.kind == "sync" and code == 0 and file in self._unsynced:
                self._unsynced.remove(file)
                self._call(path, Op("sync", FOLDER), lambda: 0)
            return code

        return call

    def _delete(self, vfs: int, name: int, sync_folder: int) -> int:
        path = _read_path(name)
        real = _DELETE(self._real.xDelete)
        address = ctypes.addressof(self._real)
        op = Op("delete", path.name)
        code = self._call(path, op, lambda: real(address, name, sync_folder))
        if sync_folder and code == 0:
            self._call(path, Op("sync", FOLDER), lambda: 0)
        return code

    def _call(self, path: Path, op: Op, real: Callable[[], int]) -> int:
        disk = self.disk
        if disk is None or disk.folder not in (None, path.parent):
            return real()
        with self._lock:
            if code := disk.fail(op):
                return code
            code = real()
            if code == 0 and disk.folder is not None:
                disk.ops.append(op)
            return code


def _read_path(address: int) -> Path:
    return Path(ctypes.string_at(address).decode())


def find_reason_against_watching() -> str:
    """Return why this Python's SQLite cannot be watched, or nothing."""
    try:
        library = ctypes.CDLL("libsqlite3.so.0")
    except OSError as error:
        return f"SQLite is not a shared library here: {error}"
    library.sqlite3_libversion.restype = c_char_p
    if library.sqlite3_libversion().decode() != sqlite3.sqlite_version:
        return "this Python has a SQLite of its own"
    return ""


_watched: list[_Watched] = []  # connections may outlive a test, so the table lives on, too


@contextmanager
def watch(folder: Path) -> Iterator[Disk]:
    """Watch what SQLite does to the files of this folder that it opens from now on.

    What is in the folder now is on the disk.
    """
    if reason := find_reason_against_watching():
        pytest.skip(reason)
    folder.mkdir(parents=True, exist_ok=True)
    base = {p.name: p.read_bytes() for p in folder.glob("*") if not p.name.endswith("-shm")}
    watched = _get_watched()
    watched.disk = Disk(folder, base=base)
    watched.register()
    try:
        yield watched.disk
    finally:
        watched.unregister()
        watched.disk = None


def fail_calls(fail: Callable[[Op], int]) -> None:
    """Let calls fail in this process from now on, in all folders."""
    watched = _get_watched()
    watched.disk = Disk(None, fail=fail)
    watched.register()


def _get_watched() -> _Watched:
    if not _watched:
        _watched.append(_Watched())
    return _watched[0]
