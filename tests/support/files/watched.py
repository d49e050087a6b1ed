"""File system calls that a subclass can intercept."""

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.queues.files import FsOps

CALLS = (
    "open",
    "close",
    "read",
    "write",
    "fsync",
    "rename",
    "link",
    "symlink",
    "readlink",
    "unlink",
    "mkdir",
    "rmdir",
    "stat",
    "access",
    "chmod",
    "fchmod",
    "utime",
    "flock",
    "listdir",
    "start_writing",
)


class WatchedFs(FsOps):
    """Every call goes through `call`, which subclasses override."""

    def __init__(self, server_time: Callable[[], float] | None = None) -> None:
        super().__init__(server_time)
        for name in CALLS:
            setattr(self, name, partial(self.call, name, getattr(FsOps, name)))

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs)
