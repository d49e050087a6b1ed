"""The folders of a queue: where they are, and making them."""

import os
from pathlib import Path

from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.local.filesystem.names import checked
from holdfast.adapters.local.filesystem.tree import Tree, unavailable
from holdfast.core.errors import QueueUnavailable

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


def open_tree(folder: Path, fs: FsOps, *, create: bool, durable: bool) -> Tree:
    """Raises QueueUnavailable when it is not there and is not to be made, or cannot be."""
    if not create and not (folder / "pending").is_dir():
        raise QueueUnavailable(
            f"there is no queue at {str(folder)!r}: check the name, or push to it first"
        )
    try:
        if create:
            for name in FOLDERS:
                (folder / name).mkdir(parents=True, exist_ok=True)
            if durable:
                _sync_upwards(folder, fs)
        return Tree(folder, fs, durable=durable)
    except OSError as error:
        raise unavailable(folder, error) from error


def _sync_upwards(folder: Path, fs: FsOps) -> None:
    """The queue's folder, queues/<campaign>/ and the root, each by the one it is in."""
    for level in (folder, *list(folder.absolute().parents)[:4]):
        fd = fs.open(str(level), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fs.fsync(fd)
        finally:
            fs.close(fd)
