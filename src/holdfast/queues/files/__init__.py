"""The filesystem queue: one JSON file per task; its folder and name are its state."""

from holdfast.queues.files.directory import FsOps
from holdfast.queues.files.queue import FilesystemQueue

LocalFileQueue = FilesystemQueue  # the name in the second design document

__all__ = ["FilesystemQueue", "FsOps", "LocalFileQueue"]
