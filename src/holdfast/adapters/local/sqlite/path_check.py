"""Where the file lies, and whether SQLite can be trusted with it there."""

import os
from pathlib import Path
from threading import Lock

from holdfast.adapters.local.filesystem.checks.mounts import MOUNTS, find_mount, parse_mounts
from holdfast.adapters.modes import MODES, make_folders
from holdfast.core.errors import ConfigError

# Writers find each other through a file they map into memory, and by locks on it. Across
# machines neither holds: two writers at once, and the file is beyond repair.
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "davfs", "9p"}
_CLUSTER = {"ceph", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2", "glusterfs"}
_SHARED_BY_HOST = {"virtiofs", "vboxsf", "vmhgfs"}  # of a virtual machine
_FUSE = {f"fuse.{of}" for of in ("sshfs", "s3fs", "gcsfuse", "rclone", "davfs2", *_CLUSTER)}
_REMOTE = _NETWORK | _CLUSTER | _SHARED_BY_HOST | _FUSE

_creating = Lock()


def prepare_file(path: Path, mounts: Path = MOUNTS, *, content: str = "jobs") -> None:
    """Make sure of a file there that only we can read. Raises ConfigError."""
    try:
        make_folders(path.parent)
        _require_local(path, mounts)
        if path.is_dir():
            raise ConfigError(f"{str(path)!r} is a folder: name a file for the {content}")
        _create_file(path)
    except OSError as error:
        raise ConfigError(
            f"no {content} can be kept in {str(path)!r}: {error.strerror}"
        ) from error


def _create_file(path: Path) -> None:
    # Closing any descriptor of a file drops all locks this process has on it, so one that
    # SQLite may have open must not be opened here. Under the lock nobody of this process
    # gets to it between its making and our closing.
    with _creating:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, MODES["private"].file))
        except FileExistsError:
            return


def _require_local(path: Path, mounts: Path) -> None:
    try:
        table = parse_mounts(mounts.read_text())
    except OSError:
        return  # a system that does not tell
    mount = find_mount(str(path.resolve()), table)
    if mount is not None and mount.kind in _REMOTE:
        raise ConfigError(
            f"{str(path)!r} is on {mount.kind}, mounted at {mount.point}: SQLite needs memory "
            "shared by all who write; use a local disk, or DynamoDB for several machines"
        )


def get_file_identity(path: Path) -> tuple[int, int] | None:
    """Which file lies there now; None for none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
