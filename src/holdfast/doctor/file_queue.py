"""Checks whether a folder is suitable for a queue, and of the queue in it.

The probes use real processes in a folder of their own, which is removed afterwards. Nothing
else is changed.
"""

import grp
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from holdfast.doctor.checks import CheckFailed, CheckResult, fail, ok, run_checks, warn
from holdfast.doctor.filesystem import (
    FILESYSTEM,
    PROBES,
    PUSH_FIRST,
    FileQueue,
    judge_workers,
)
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.files import layout
from holdfast.queues.files.directory import FsOps, QueueDirectory
from holdfast.queues.files.layout import FOLDERS, format_share_command
from holdfast.queues.files.operator import count_stats
from holdfast.queues.files.workers import ServerClock, WorkerRegistry
from holdfast.store.file_modes import get_access
from holdfast.text import format_count

_USE = os.R_OK | os.W_OK | os.X_OK
_MAX_LISTED = 500  # entries of a folder that are looked at
_MAX_NAMED = 5  # foreign files that are named one by one
_MAX_LEASE_MS = 13 * 3_600_000  # a lease can be twelve hours at most


def examine_file_queue(queue: FileQueue) -> Iterator[CheckResult]:
    """Run all checks, and yield each result as soon as it is known."""
    exists = queue.exists
    yield from run_checks(queue, ("queue", _check_existence), *FILESYSTEM)
    if exists:
        yield from run_checks(queue.folder, *FOLDER_CHECKS)
    yield from run_checks(queue, ("probing", _probe))
    if exists:
        yield from run_checks(queue, ("contents", _check_contents))


def _check_existence(queue: FileQueue) -> Iterator[CheckResult]:
    if not queue.exists:
        yield fail(f"there is no queue at {str(queue.folder)!r}", PUSH_FIRST)


def _probe(queue: FileQueue) -> Iterator[CheckResult]:
    where = queue.folder / "tmp" if queue.exists else queue.place
    with tempfile.TemporaryDirectory(
        prefix=".doctor-", dir=where, ignore_cleanup_errors=True
    ) as own:
        yield from run_checks(replace(queue, folder=Path(own)), *PROBES)


def _check_contents(queue: FileQueue) -> Iterator[CheckResult]:
    with closing(QueueContents(queue.folder, queue.fs)) as contents:
        yield from run_checks(contents, *CONTENTS)


# -- its folders: links, modes, permissions, one device


def check_folders(folder: Path) -> Iterator[CheckResult]:
    """Check for links, because messages would be moved to their targets, out of the queue."""
    if links := [name for name in FOLDERS if (folder / name).is_symlink()]:
        yield fail(
            f"symbolic links in place of folders: {', '.join(links)}; no worker starts here",
            "replace them with folders that have the contents of the linked folders",
        )


def check_access(folder: Path) -> Iterator[CheckResult]:
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


def check_permissions(folder: Path) -> Iterator[CheckResult]:
    """Check that this user can use every folder, and what other users made in them."""
    present = [folder, *_list_folders(folder)]
    share = format_share_command(folder)
    if closed := [path.name for path in present if not os.access(path, _USE)]:
        raise CheckFailed(
            f"this user cannot read, write and enter {', '.join(closed)}",
            f"give the queue to the group of its workers: {share}",
        )
    yield ok("this user can read and write every folder")
    if any(path.stat().st_mode & stat.S_ISVTX for path in present):
        yield warn(
            "the folders are sticky: a worker cannot take over files of another user",
            "chmod -t the folders, or run all workers as one user",
        )
    inner = ("leased", "workers", "pending", "completed")
    if inside := [path for name in inner for path in _list_closed(folder / name)]:
        yield fail(
            "this user cannot use "
            f"{format_count(len(inside), 'file or folder', 'files or folders')} of other "
            f"users, for example {inside[0]!r}; workers skip them",
            f"run all workers as one user, or share the queue: {share}",
        )


def _list_closed(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        needed = [
            (e.path, _USE if e.is_dir() else os.R_OK) for e in islice(entries, _MAX_LISTED)
        ]
    return [path for path, mode in needed if os.path.exists(path) and not os.access(path, mode)]


def check_one_device(folder: Path) -> Iterator[CheckResult]:
    """Check that all folders are on one filesystem, because a rename cannot leave it."""
    device = folder.stat().st_dev
    folders = _list_folders(folder)
    if other := [p.name for p in folders if p.stat().st_dev != device or p.is_mount()]:
        yield fail(
            f"on another filesystem than the queue: {', '.join(other)}",
            "put the whole queue on one filesystem; remove links and mounts below it",
        )
    else:
        yield ok("all folders are on one filesystem")


def _list_folders(folder: Path) -> list[Path]:
    return [folder / name for name in FOLDERS if (folder / name).is_dir()]


# -- its contents: foreign files, workers and deadlines


class QueueContents:
    """The contents of a queue's folders, which the checks only read."""

    def __init__(self, folder: Path, fs: FsOps, clock: Clock = SYSTEM_CLOCK) -> None:
        self.folder = folder
        self.directory = QueueDirectory(folder, fs)
        self.server_clock = ServerClock(self.directory, clock)

    def close(self) -> None:
        """Close the queue's folder."""
        self.directory.close()


def check_foreign_files(contents: QueueContents) -> Iterator[CheckResult]:
    """Check for files that no queue made."""
    foreign = layout.find_foreign(contents.directory)
    foreign += [name for name in contents.directory.list(".") if name not in FOLDERS]
    if not foreign:
        yield ok("none")
        return
    more = f" and {len(foreign) - _MAX_NAMED} more" if len(foreign) > _MAX_NAMED else ""
    yield warn(
        f"{len(foreign)} that were not made by a queue and are not read by workers: "
        f"{', '.join(foreign[:_MAX_NAMED])}{more}",
        f"move them out of {str(contents.folder)!r}, and push those that are work",
    )


def check_workers(contents: QueueContents) -> Iterator[CheckResult]:
    """Check that a worker polls if there is work."""
    directory, server_clock = contents.directory, contents.server_clock
    cards = [f"workers/{name}" for name in directory.list("workers") if name.endswith(".json")]
    seen = max((card.st_mtime for card in map(directory.stat, cards) if card), default=None)
    now = server_clock.read_wall_ms() / 1000
    stats = count_stats(directory, server_clock, WorkerRegistry(directory, server_clock))
    yield judge_workers(stats, seen, now)


def check_leases(contents: QueueContents) -> Iterator[CheckResult]:
    """Check for leases that end in days, which a machine with a wrong clock wrote."""
    now_ms = contents.server_clock.read_wall_ms()
    held = filter(None, map(layout.LEASED.fullmatch, contents.directory.list("leased")))
    far = [m[0] for m in held if layout.parse_deadline_ms(m) > now_ms + _MAX_LEASE_MS]
    if far:
        overdue = re.sub(r"~[0-9+]+\.json$", "~0+0+0.json", far[0])
        yield fail(
            f"{len(far)} end more than 13 hours from now, for example {far[0]}: the "
            "clock of the machine that claimed them was ahead",
            f"set that clock, end that worker, then: mv leased/{far[0]} leased/{overdue}",
        )


FOLDER_CHECKS = (check_folders, check_access, check_permissions, check_one_device)
CONTENTS = (check_foreign_files, check_workers, check_leases)
