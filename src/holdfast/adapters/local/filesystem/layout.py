"""The folders of a queue: where they are, and making them."""

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
        return Tree(folder, fs, durable=durable)
    except OSError as error:
        raise unavailable(folder, error) from error
