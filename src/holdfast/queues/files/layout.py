"""The folders of a queue: their paths, and how they are made."""

import os
import shlex
from pathlib import Path

from holdfast.errors import ConfigError, QueueNotFound
from holdfast.queues.files.directory import QueueDirectory, to_queue_unavailable
from holdfast.queues.files.fsops import FsOps
from holdfast.store.file_modes import MODES, Access, get_access, make_folders, require_no_file
from holdfast.urls import check_name

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


def get_queue_folder(root: Path, campaign: str, queue: str) -> Path:
    """Return the folder of a queue. Raises InvalidName."""
    return root / "queues" / check_name("campaign", campaign) / check_name("queue", queue)


def open_directory(
    folder: Path, fs: FsOps, *, create: bool, durable: bool, access: Access = "private"
) -> QueueDirectory:
    """Open a queue's folder, and make it if `create` is True.

    `access` applies to a folder that is made now; an existing one keeps its mode. Raises
    QueueNotFound if the folder is missing, QueueUnavailable if it cannot be made, and
    ConfigError if it is private but `access` is "group".
    """
    try:
        if (folder / "pending").is_dir():
            _check_access(folder, access)
        elif create:
            _make_queue_folder(folder, access)
        else:
            require_no_file(folder)
            raise QueueNotFound(
                f"there is no queue at {str(folder)!r}: check the name, or push to it first"
            )
        directory = QueueDirectory(folder, fs, durable=durable)
        directory.refuse_links(*FOLDERS)
        if create:
            _make_missing_folders(directory)
        return directory
    except OSError as error:
        raise to_queue_unavailable(folder, error) from error


def _make_queue_folder(folder: Path, access: Access) -> None:
    make_folders(folder, access)
    if access == "group":  # a process that made it may have been killed before this step
        os.chmod(folder, MODES[access].folder)


def _make_missing_folders(directory: QueueDirectory) -> None:
    """Make the missing folders; pending/ last, because it shows that the queue exists."""
    for name in reversed(FOLDERS):
        directory.mkdir(name)
    if directory.durable:
        _sync_upwards(directory.folder, directory.fs)


def _check_access(folder: Path, access: Access) -> None:
    status = os.stat(folder)
    if access == "group" and get_access(status) == "private":
        raise ConfigError(
            f"queue {str(folder)!r} is private (mode {status.st_mode & 0o7777:04o}), so it "
            f"cannot be opened with access=group: share it with {format_share_command(folder)}"
        )


def format_share_command(folder: Path) -> str:
    """Return the commands that share an existing queue with a group."""
    path = shlex.quote(str(folder))
    return (
        f"chgrp -R GROUP {path} && chmod -R g+rwX,o= {path} && "
        f"find {path} -type d -exec chmod g+s {{}} +"
    )


def _sync_upwards(folder: Path, fs: FsOps) -> None:
    """Sync the folder and its parents up to that of the root, which hold their entries."""
    for level in (folder, *list(folder.absolute().parents)[:4]):
        fd = fs.open(str(level), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fs.fsync(fd)
        finally:
            fs.close(fd)
