"""Checks of the folders: links, permissions, one device, and free space."""

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from holdfast.adapters.local.filesystem.layout import FOLDERS, format_share_command
from holdfast.core.checks import CheckResult, fail, ok, warn

_MIB = 1 << 20
_WARN_BYTES, _WARN_FILES = 1024 * _MIB, 100_000
_FAIL_BYTES, _FAIL_FILES = 64 * _MIB, 1_000
_FREE_SPACE = "free some: `holdfast purge --older-than 7d` removes completed messages"
_USE = os.R_OK | os.W_OK | os.X_OK


def check_links(folder: Path) -> Iterator[CheckResult]:
    """Check for links, because messages would be moved to their targets, out of the queue."""
    links = [name for name in FOLDERS if (folder / name).is_symlink()]
    if links:
        yield fail(
            "folders",
            f"symbolic links in place of folders: {', '.join(links)}; no worker starts here",
            "replace them with folders that have the contents of the linked folders",
        )


def check_access(folder: Path) -> Iterator[CheckResult]:
    """Check that this user can use every folder."""
    missing = [name for name in FOLDERS if not (folder / name).is_dir()]
    if missing:
        yield warn(
            "folders", f"missing: {', '.join(missing)}", "the next push or worker makes them"
        )
    present = [folder, *(folder / name for name in FOLDERS if name not in missing)]
    closed = [path.name for path in present if not _is_usable(path)]
    if closed:
        yield fail(
            "permissions",
            f"this user cannot read, write and enter {', '.join(closed)}",
            f"give the queue to the group of its workers: {format_share_command(folder)}",
        )
        return
    yield ok("permissions", "this user can read and write every folder")
    yield from _check_sticky(present)
    yield from _check_unreadable(folder)


def _is_usable(path: Path) -> bool:
    return os.access(path, _USE)


def _check_sticky(folders: list[Path]) -> Iterator[CheckResult]:
    if any(path.stat().st_mode & stat.S_ISVTX for path in folders):
        yield warn(
            "permissions",
            "the folders are sticky: a worker cannot take over files of another user",
            "chmod -t the folders, or run all workers as one user",
        )


def _check_unreadable(folder: Path) -> Iterator[CheckResult]:
    """Check for files and folders that another user closed, because workers skip them."""
    inner = ("leased", "workers", "pending", "completed")
    if closed := [path for name in inner for path in _list_closed(folder / name)]:
        yield fail(
            "permissions",
            f"this user cannot use {len(closed)} files or folders of other users, for example "
            f"{closed[0]!r}; workers skip them",
            f"run all workers as one user, or share the queue: {format_share_command(folder)}",
        )


def _list_closed(folder: Path, max_entries: int = 500) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        needed = [
            (e.path, _USE if e.is_dir() else os.R_OK) for e in islice(entries, max_entries)
        ]
    return [path for path, mode in needed if os.path.exists(path) and not os.access(path, mode)]


def check_device(folder: Path) -> Iterator[CheckResult]:
    """Check that all folders are on one filesystem, because a rename cannot leave it."""
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


def check_space(folder: Path) -> Iterator[CheckResult]:
    """Check the free bytes and inodes."""
    disk = os.statvfs(folder)
    yield judge_space(disk.f_bavail * disk.f_frsize)
    if disk.f_files:  # filesystems that make inodes on demand report 0
        yield judge_inodes(disk.f_favail)


def judge_space(free: int) -> CheckResult:
    """Return the result for this many free bytes."""
    text = (
        f"{free / (1 << 30):,.1f} GiB free" if free >= 1 << 30 else f"{free // _MIB} MiB free"
    )
    if free < _FAIL_BYTES:
        return fail("space", text, _FREE_SPACE)
    if free < _WARN_BYTES:
        return warn("space", text, _FREE_SPACE)
    return ok("space", text)


def judge_inodes(free: int) -> CheckResult:
    """Return the result for this many free inodes."""
    text = f"space for {free:,} more files; each message is one file"
    if free < _FAIL_FILES:
        return fail("inodes", text, _FREE_SPACE)
    if free < _WARN_FILES:
        return warn("inodes", text, _FREE_SPACE)
    return ok("inodes", text)
