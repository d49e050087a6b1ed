"""Check the file's location and create the file with safe permissions."""

import errno
import os
import shlex
from pathlib import Path
from threading import Lock

from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.store.file_modes import MODES, Access, make_folders
from holdfast.store.mounts import MOUNTS, find_mount

# Writers coordinate through a file that they map into memory, and by locks on it. Neither works
# across machines. Two writers could then write at once and damage the file beyond repair.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "davfs", "9p"}
_CLUSTER = {"ceph", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2", "glusterfs"}
_SHARED_BY_HOST = {"virtiofs", "vboxsf", "vmhgfs"}  # shared with the host of a virtual machine
_FUSE = {f"fuse.{of}" for of in ("sshfs", "s3fs", "gcsfuse", "rclone", "davfs2", *_CLUSTER)}
_REMOTE = _NETWORK | _CLUSTER | _SHARED_BY_HOST | _FUSE

_MAY_PASS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE}

_creating = Lock()


def prepare_file(
    path: Path,
    mounts: Path = MOUNTS,
    *,
    content: str = "jobs",
    alternative: str = "DynamoDB",
    access: Access = "private",
) -> None:
    """Make sure that the file exists. `access` says who can read a file that is created now.

    Raises ConfigError, and StoreUnavailable for a fault that may pass. For people, `content`
    is what the file stores, and `alternative` is where several machines can share it.
    """
    try:
        _make_durable_folders(path.parent, access)
        require_local(path, mounts, alternative)
        if path.is_dir():
            raise ConfigError(
                f"{str(path)!r} is a folder: give the path of a file for the {content}"
            )
        if not _create_file(path, access) and access == "group":
            _require_shared(path)
    except OSError as error:
        kind = StoreUnavailable if error.errno in _MAY_PASS else ConfigError
        text = f"{str(path)!r} cannot store {content}: {error.strerror}; correct that, or use "
        raise kind(f"{text}another path") from error


def _make_durable_folders(folder: Path, access: Access) -> None:
    """Make missing folders and sync their entries. SQLite syncs the entry of its file only."""
    missing = [level for level in (folder, *folder.parents) if not level.is_dir()]
    make_folders(folder, access)
    for level in missing:
        fd = os.open(level.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _create_file(path: Path, access: Access) -> bool:
    """Create the file unless it exists. Returns whether it was created.

    SQLite gives the files beside it, which end in -wal and -shm, the same mode.
    """
    # Closing any descriptor of a file drops all locks that this process has on it. A file that
    # SQLite may have open must therefore not be opened here. Because of the lock, no other
    # thread of this process can open the file between its creation and this close.
    with _creating:
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, MODES["private"].file)
        except FileExistsError:
            return False
        try:
            os.fchmod(fd, MODES[access].file)
        finally:
            os.close(fd)
        return True


def _require_shared(path: Path) -> None:
    mode = path.stat().st_mode & 0o7777
    if mode & 0o060 != 0o060:
        raise ConfigError(
            f"{str(path)!r} is private (mode {mode:04o}), so it cannot be opened with "
            f"access=group: share it with {format_share_command(path)}"
        )


def format_share_command(path: Path) -> str:
    """Return the commands that share an existing database with a group.

    The folder is shared too, because SQLite creates and removes the files beside it.
    """
    file, folder = shlex.quote(str(path)), shlex.quote(str(path.parent))
    return f"chgrp GROUP {folder} {file}* && chmod g+rw {file}* && chmod g+rwxs {folder}"


def require_local(path: Path, mounts: Path = MOUNTS, alternative: str = "DynamoDB") -> None:
    """Raise ConfigError if the path is on a network filesystem."""
    mount = find_mount(path, mounts)
    if mount is not None and mount.kind in _REMOTE:
        raise ConfigError(
            f"{str(path)!r} is on {mount.kind}, mounted at {mount.point}: SQLite needs memory "
            f"shared by all writers; use a local disk, or {alternative} for several machines"
        )


def get_file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file, or None if there is no file."""
    try:
        status = os.stat(path)  # faster, and called for every write
    except OSError:
        return None
    return status.st_dev, status.st_ino
