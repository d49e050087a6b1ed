"""The filesystem queue: one JSON file per task; its folder and name are its state."""

from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.local.filesystem.queue import FilesystemQueue

LocalFileQueue = FilesystemQueue  # the name in the second design document

__all__ = ["FilesystemQueue", "FsOps", "LocalFileQueue"]
