"""The folders of a queue: where they are, and making them."""

import os
import shlex
from pathlib import Path

from holdfast.adapters.local.filesystem.directory import QueueDirectory, unavailable
from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.local.filesystem.names import checked
from holdfast.adapters.modes import MODES, Access, access_of, make_folders
from holdfast.core.errors import ConfigError, QueueUnavailable

FOLDERS = (
    "pending",
    "leased",
    "completed",
    "failed",
    "checkpoints",
    "history",
    "workers",
    "ids",
    "tmp",
)


def queue_folder(root: Path, campaign: str, queue: str) -> Path:
    return root / "queues" / checked("campaign", campaign) / checked("queue", queue)


def open_tree(
    folder: Path, fs: FsOps, *, create: bool, durable: bool, access: Access = "private"
) -> QueueDirectory:
    """Open a queue's folder. `access` is for one that is made now: others have their mode.

    Raises QueueUnavailable when it is not there and is not to be made, or cannot be, and
    ConfigError when it is private and should be a group's.
    """
    try:
        if (folder / "pending").is_dir():
            _check_access(folder, access)
        elif create:
            _make_queue_folder(folder, access)
        else:
            raise QueueUnavailable(
                f"there is no queue at {str(folder)!r}: check the name, or push to it first"
            )
        tree = QueueDirectory(folder, fs, durable=durable)
        tree.refuse_links(*FOLDERS)
        if create:
            _complete(tree)
        return tree
    except OSError as error:
        raise unavailable(folder, error) from error


def _make_queue_folder(folder: Path, access: Access) -> None:
    make_folders(folder, access)
    if access == "group":  # a killed process may have made it, and not come this far
        os.chmod(folder, MODES[access].folder)


def _complete(tree: QueueDirectory) -> None:
    """Make the folders that are missing; pending/ last, as it says that the queue is there."""
    for name in reversed(FOLDERS):
        tree.mkdir(name)
    if tree.durable:
        _sync_upwards(tree.folder, tree.fs)


def _check_access(folder: Path, access: Access) -> None:
    status = os.stat(folder)
    if access == "group" and access_of(status) == "private":
        raise ConfigError(
            f"queue {str(folder)!r} is private (mode {status.st_mode & 0o7777:04o}), so it "
            f"cannot be opened with access=group: share it with {share_command(folder)}"
        )


def share_command(folder: Path) -> str:
    """The commands that give an existing queue to a group."""
    path = shlex.quote(str(folder))
    return (
        f"chgrp -R GROUP {path} && chmod -R g+rwX,o= {path} && "
        f"find {path} -type d -exec chmod g+s {{}} +"
    )


def _sync_upwards(folder: Path, fs: FsOps) -> None:
    """The queue's folder, queues/<campaign>/ and the root, each by the one it is in."""
    for level in (folder, *list(folder.absolute().parents)[:4]):
        fd = fs.open(str(level), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fs.fsync(fd)
        finally:
            fs.close(fd)
