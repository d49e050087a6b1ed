"""Checks of the folders of a file queue: links, modes, permissions, one device."""

import grp
import os
import shlex
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from holdfast.adapters.local.filesystem.layout import FOLDERS, format_share_command
from holdfast.adapters.modes import get_access
from holdfast.core.checks import CheckResult, fail, ok, warn

_USE = os.R_OK | os.W_OK | os.X_OK
_MAX_LISTED = 500  # entries of a folder that are looked at


def check_links(folder: Path) -> Iterator[CheckResult]:
    """Check for links, because messages would be moved to their targets, out of the queue."""
    if links := [name for name in FOLDERS if (folder / name).is_symlink()]:
        yield fail(
            f"symbolic links in place of folders: {', '.join(links)}; no worker starts here",
            "replace them with folders that have the contents of the linked folders",
        )


def check_mode(folder: Path) -> Iterator[CheckResult]:
    """Check the mode of the queue's folder.

    Its mode alone is enough, because a user that cannot enter it reaches nothing inside.
    """
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    path = shlex.quote(str(folder))
    shared = get_access(status) == "group"
    whose = f"shared with group {_get_group_name(status.st_gid)}" if shared else "private"
    if mode & 0o007:
        yield warn(
            f"every user of this machine can enter it (mode {mode:04o}), although it holds "
            "message bodies, task tokens and tracebacks",
            f"chmod -R {'o=' if shared else 'go='} {path}",
        )
    elif shared and not mode & stat.S_ISGID:
        yield warn(
            f"{whose}, but new files do not inherit the group (mode {mode:04o})",
            f"find {path} -type d -exec chmod g+s {{}} +",
        )
    elif not shared and mode & 0o070:
        yield warn(
            f"its group can read it, but not work on it (mode {mode:04o})",
            f"chmod -R g= {path}; or share it: {format_share_command(folder)}",
        )
    else:
        yield ok(f"{whose} (mode {mode:04o})")


def _get_group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def check_missing(folder: Path) -> Iterator[CheckResult]:
    """Check for folders that do not exist."""
    if missing := [name for name in FOLDERS if not (folder / name).is_dir()]:
        yield warn(f"missing: {', '.join(missing)}", "the next push or worker makes them")


def check_access(folder: Path) -> Iterator[CheckResult]:
    """Check that this user can use every folder."""
    present = [folder, *_list_folders(folder)]
    if closed := [path.name for path in present if not os.access(path, _USE)]:
        yield fail(
            f"this user cannot read, write and enter {', '.join(closed)}",
            f"give the queue to the group of its workers: {format_share_command(folder)}",
        )
        return
    yield ok("this user can read and write every folder")
    if any(path.stat().st_mode & stat.S_ISVTX for path in present):
        yield warn(
            "the folders are sticky: a worker cannot take over files of another user",
            "chmod -t the folders, or run all workers as one user",
        )
    yield from _check_unreadable(folder)


def _check_unreadable(folder: Path) -> Iterator[CheckResult]:
    """Check for files and folders that another user closed, because workers skip them."""
    inner = ("leased", "workers", "pending", "completed")
    if closed := [path for name in inner for path in _list_closed(folder / name)]:
        yield fail(
            f"this user cannot use {len(closed)} files or folders of other users, for example "
            f"{closed[0]!r}; workers skip them",
            f"run all workers as one user, or share the queue: {format_share_command(folder)}",
        )


def _list_closed(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        needed = [
            (e.path, _USE if e.is_dir() else os.R_OK) for e in islice(entries, _MAX_LISTED)
        ]
    return [path for path, mode in needed if os.path.exists(path) and not os.access(path, mode)]


def check_device(folder: Path) -> Iterator[CheckResult]:
    """Check that all folders are on one filesystem, because a rename cannot leave it."""
    device = folder.stat().st_dev
    elsewhere = [
        path.name
        for path in _list_folders(folder)
        if path.stat().st_dev != device or path.is_mount()
    ]
    if elsewhere:
        yield fail(
            f"on another filesystem than the queue: {', '.join(elsewhere)}",
            "put the whole queue on one filesystem; remove links and mounts below it",
        )
    else:
        yield ok("all folders are on one filesystem")


def _list_folders(folder: Path) -> list[Path]:
    return [folder / name for name in FOLDERS if (folder / name).is_dir()]


FOLDER_CHECKS = (
    ("folders", check_links),
    ("access", check_mode),
    ("folders", check_missing),
    ("permissions", check_access),
    ("one device", check_device),
)
