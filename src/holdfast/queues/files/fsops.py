"""Every file operation of the queue, in one place that tests can replace.

Each call is one step of the protocol. The crash tests kill the process before each step, and
the schedule tests interleave the steps.
"""

import errno
import fcntl
import os
from collections.abc import Callable

from holdfast.lease.clock import SYSTEM_CLOCK, Clock


def refuse_xattr(*_: object) -> bytes:
    """Raise OSError, as a filesystem without extended attributes does."""
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


class FsOps:
    """The real system calls."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    read = staticmethod(os.read)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    rename = staticmethod(os.rename)
    link = staticmethod(os.link)
    symlink = staticmethod(os.symlink)
    readlink = staticmethod(os.readlink)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    stat = staticmethod(os.stat)
    access = staticmethod(os.access)
    chmod = staticmethod(os.chmod)
    fchmod = staticmethod(os.fchmod)
    utime = staticmethod(os.utime)
    flock = staticmethod(fcntl.flock)
    # Not on every system, and not on every filesystem.
    setxattr = staticmethod(getattr(os, "setxattr", refuse_xattr))
    getxattr = staticmethod(getattr(os, "getxattr", refuse_xattr))
    listdir: "staticmethod[[int], list[str]]" = staticmethod(os.listdir)

    @staticmethod
    def start_writing(fd: int) -> None:
        """Begin to write a file's bytes to the disk without waiting; this is only a hint."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def __init__(self, server_time: Callable[[], float] | None = None) -> None:
        self.server_time = server_time  # None: read it from the filesystem
        # Other processes release a lock in real time, whatever clock the queue uses.
        self.lock_clock: Clock = SYSTEM_CLOCK
