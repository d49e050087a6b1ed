"""Check the file's location and create the file with safe permissions."""

import os
from pathlib import Path
from threading import Lock

from holdfast.adapters.local.mounts import MOUNTS, find_mount
from holdfast.adapters.modes import MODES, make_folders
from holdfast.core.errors import ConfigError

# Writers coordinate through a file that they map into memory, and by locks on it. Neither works
# across machines. Two writers could then write at once and damage the file beyond repair.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "davfs", "9p"}
_CLUSTER = {"ceph", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2", "glusterfs"}
_SHARED_BY_HOST = {"virtiofs", "vboxsf", "vmhgfs"}  # shared with the host of a virtual machine
_FUSE = {f"fuse.{of}" for of in ("sshfs", "s3fs", "gcsfuse", "rclone", "davfs2", *_CLUSTER)}
_REMOTE = _NETWORK | _CLUSTER | _SHARED_BY_HOST | _FUSE

_creating = Lock()


def prepare_file(path: Path, mounts: Path = MOUNTS, *, content: str = "jobs") -> None:
    """Make sure that the file exists and only this user can read it. Raises ConfigError."""
    try:
        make_folders(path.parent)
        _require_local(path, mounts)
        if path.is_dir():
            raise ConfigError(
                f"{str(path)!r} is a folder: give the path of a file for the {content}"
            )
        _create_file(path)
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot store {content}: {error.strerror}") from error


def _create_file(path: Path) -> None:
    # Closing any descriptor of a file drops all locks that this process has on it. A file that
    # SQLite may have open must therefore not be opened here. Because of the lock, no other
    # thread of this process can open the file between its creation and this close.
    with _creating:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, MODES["private"].file))
        except FileExistsError:
            return


def _require_local(path: Path, mounts: Path) -> None:
    mount = find_mount(path, mounts)
    if mount is not None and mount.kind in _REMOTE:
        raise ConfigError(
            f"{str(path)!r} is on {mount.kind}, mounted at {mount.point}: SQLite needs memory "
            "shared by all writers; use a local disk, or DynamoDB for several machines"
        )


def get_file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of the file, or None if there is no file."""
    try:
        status = os.stat(path)  # faster, and called for every write
    except OSError:
        return None
    return status.st_dev, status.st_ino
