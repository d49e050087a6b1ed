"""The folders themselves: there, ours to use, on one device, with room left."""

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from holdfast.adapters.local.filesystem.layout import FOLDERS, share_command
from holdfast.core.checks import CheckResult, fail, ok, warn

_MIB = 1 << 20
_LITTLE_BYTES, _FEW_FILES = 1024 * _MIB, 100_000
_NO_BYTES, _NO_FILES = 64 * _MIB, 1_000
_MAKE_ROOM = "free some: `holdfast purge --older-than 7d` removes completed messages"
_USE = os.R_OK | os.W_OK | os.X_OK


def link_check(folder: Path) -> Iterator[CheckResult]:
    """Messages would be moved to where a link leads, out of the queue."""
    links = [name for name in FOLDERS if (folder / name).is_symlink()]
    if links:
        yield fail(
            "folders",
            f"symbolic links in place of folders: {', '.join(links)}; no worker starts here",
            "put folders in their place, with what is in the folders they lead to",
        )


def access_check(folder: Path) -> Iterator[CheckResult]:
    missing = [name for name in FOLDERS if not (folder / name).is_dir()]
    if missing:
        yield warn(
            "folders", f"missing: {', '.join(missing)}", "the next push or worker makes them"
        )
    present = [folder, *(folder / name for name in FOLDERS if name not in missing)]
    closed = [path.name for path in present if not _usable(path)]
    if closed:
        yield fail(
            "permissions",
            f"this user cannot read, write and enter: {', '.join(closed)}",
            f"give the queue to the group of its workers: {share_command(folder)}",
        )
        return
    yield ok("permissions", "this user can read and write every folder")
    yield from _sticky(present)
    yield from _unreadable(folder)


def _usable(path: Path) -> bool:
    return os.access(path, _USE)


def _sticky(folders: list[Path]) -> Iterator[CheckResult]:
    if any(path.stat().st_mode & stat.S_ISVTX for path in folders):
        yield warn(
            "permissions",
            "the folders are sticky: a worker cannot take over files of another user",
            "chmod -t the folders, or run all workers as one user",
        )


def _unreadable(folder: Path) -> Iterator[CheckResult]:
    """Workers pass over what another user closed, so what is in there is stuck."""
    inner = ("leased", "workers", "pending", "completed")
    if closed := [path for name in inner for path in _closed(folder / name)]:
        yield fail(
            "permissions",
            f"this user cannot use {len(closed)} files or folders of other users, for example "
            f"{closed[0]!r}; workers pass them over",
            f"run all workers as one user, or share the queue: {share_command(folder)}",
        )


def _closed(folder: Path, at_most: int = 500) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        needed = [(e.path, _USE if e.is_dir() else os.R_OK) for e in islice(entries, at_most)]
    return [path for path, how in needed if os.path.exists(path) and not os.access(path, how)]


def device_check(folder: Path) -> Iterator[CheckResult]:
    """A rename between filesystems is no rename."""
    inside = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    elsewhere = [
        path.name
        for path in inside
        if path.stat().st_dev != folder.stat().st_dev or path.is_mount()
    ]
    if elsewhere:
        yield fail(
            "one device",
            f"on another filesystem than the queue: {', '.join(elsewhere)}",
            "put the whole queue on one filesystem; remove links and mounts below it",
        )
    else:
        yield ok("one device", "all folders are on one filesystem")


def space_check(folder: Path) -> Iterator[CheckResult]:
    room = os.statvfs(folder)
    yield space_verdict(room.f_bavail * room.f_frsize)
    if room.f_files:  # some filesystems make inodes as they go, and say 0
        yield inode_verdict(room.f_favail)


def space_verdict(free: int) -> CheckResult:
    found = (
        f"{free / (1 << 30):,.1f} GiB free" if free >= 1 << 30 else f"{free // _MIB} MiB free"
    )
    if free < _NO_BYTES:
        return fail("space", found, _MAKE_ROOM)
    if free < _LITTLE_BYTES:
        return warn("space", found, _MAKE_ROOM)
    return ok("space", found)


def inode_verdict(free: int) -> CheckResult:
    found = f"room for {free:,} more files; each message is one"
    if free < _NO_FILES:
        return fail("inodes", found, _MAKE_ROOM)
    if free < _FEW_FILES:
        return warn("inodes", found, _MAKE_ROOM)
    return ok("inodes", found)
