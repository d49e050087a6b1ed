"""Checks of the filesystem of a queue: kind, mount options, sync programs, free space."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.local.mounts import MOUNTS, find_mount
from holdfast.core.checks import CheckResult, fail, grade, ok, warn
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.doctor import racer

_NFS = {"nfs", "nfs4"}
# On these, a rename is one step on the server, for all machines.
_SHARED = {"ceph", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2", "fuse.glusterfs", "glusterfs"}
_DOUBTFUL = {"cifs", "smb3", "smbfs", "9p", "virtiofs", "vboxsf", "vmhgfs", "afs", "davfs"}
_MEMORY = {"tmpfs", "ramfs"}
# Files and folders that sync programs make at the top of the folders they sync.
_SYNC_MARKS = {
    ".dropbox": "Dropbox",
    ".dropbox.cache": "Dropbox",
    ".stfolder": "Syncthing",
    ".sync_journal.db": "Nextcloud",
    ".owncloudsync.log": "ownCloud",
    ".SeafileData": "Seafile",
    ".csync_journal.db": "ownCloud",
}
_RACER = Path(racer.__file__)
_MIB = 1 << 20
_WARN_BYTES, _WARN_FILES = 1024 * _MIB, 100_000
_FAIL_BYTES, _FAIL_FILES = 64 * _MIB, 1_000
_FREE_SPACE = "free some: `holdfast purge --older-than 7d` removes completed messages"


@dataclass(frozen=True, slots=True)
class FileQueue:
    """The queue in `folder`, or the place of one that does not exist yet."""

    folder: Path
    clock: Clock = SYSTEM_CLOCK
    fs: FsOps = field(default_factory=FsOps)
    mounts: Path = MOUNTS
    racer: Path = _RACER

    @property
    def exists(self) -> bool:
        """Whether there is a queue."""
        return (self.folder / "pending").is_dir()

    @property
    def place(self) -> Path:
        """The queue's folder if it exists, or else the first folder above it that does."""
        above = (self.folder, *self.folder.resolve().parents)
        return next((folder for folder in above if folder.is_dir()), Path("/"))


def check_kind(queue: FileQueue) -> Iterator[CheckResult]:
    """Check the kind of the filesystem."""
    mount = find_mount(queue.place, queue.mounts)
    if mount is None:
        yield ok("its kind is unknown on this system")
        return
    on = f"{mount.kind}, mounted at {mount.point}"
    if mount.kind in _MEMORY:
        yield warn(f"{on}: in memory", "a reboot empties it; use a disk")
    elif mount.kind in _NFS or mount.kind in _SHARED:
        yield ok(f"{on}: a network filesystem whose renames have one winner")
    elif mount.kind in _DOUBTFUL or mount.kind.startswith("fuse"):
        yield warn(
            f"{on}: it is not guaranteed that a rename has one winner among several machines",
            "let one machine use it, or move the queue to a local disk or NFS",
        )
    else:
        yield ok(on)


def check_mount_options(queue: FileQueue) -> Iterator[CheckResult]:
    """Check the options that the filesystem is mounted with."""
    mount = find_mount(queue.place, queue.mounts)
    if mount is None:
        return
    if "ro" in mount.options:
        yield fail("mounted read-only", "mount it read-write: mount -o remount,rw")
    if mount.kind not in _NFS:
        return
    if "soft" in mount.options:
        yield warn(
            "mounted soft: a call that timed out may still have happened",
            "mount it with the option hard",
        )
    if mount.options & {"nolock", "local_lock=all", "local_lock=flock"}:
        yield warn(
            "locks are local: other machines do not see them",
            "do not use dedupe=True here, or mount it without nolock and local_lock",
        )
    if "lookupcache=none" not in mount.options and "noac" not in mount.options:
        yield ok("names are cached: a push of another machine may appear seconds late")


def check_sync_programs(queue: FileQueue) -> Iterator[CheckResult]:
    """Check for folders that a program copies between machines.

    There, two machines can both win a rename.
    """
    for above in (queue.place, *queue.place.resolve().parents):
        for mark, program in _SYNC_MARKS.items():
            if (above / mark).exists():
                yield fail(
                    f"{program} syncs {str(above)!r} by copying, so two machines can claim "
                    "the same message",
                    "move the queue out of it",
                )
                return


def check_space(queue: FileQueue) -> Iterator[CheckResult]:
    """Check the free bytes."""
    yield grade_space(count_free_bytes(queue.place))


def check_inodes(queue: FileQueue) -> Iterator[CheckResult]:
    """Check the free inodes. Filesystems that make inodes on demand report 0 in all."""
    disk = os.statvfs(queue.place)
    if disk.f_files:
        yield grade_inodes(disk.f_favail)


def count_free_bytes(folder: Path) -> int:
    """Return the bytes that this user may still write."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def grade_space(free: int) -> CheckResult:
    """Return the result for this many free bytes."""
    text = (
        f"{free / (1 << 30):,.1f} GiB free" if free >= 1 << 30 else f"{free // _MIB} MiB free"
    )
    return grade(text, _FREE_SPACE, fails=free < _FAIL_BYTES, warns=free < _WARN_BYTES)


def grade_inodes(free: int) -> CheckResult:
    """Return the result for this many free inodes."""
    text = f"space for {free:,} more files; each message is one file"
    return grade(text, _FREE_SPACE, fails=free < _FAIL_FILES, warns=free < _WARN_FILES)


FILESYSTEM = (
    ("filesystem", check_kind),
    ("mount", check_mount_options),
    ("synced folder", check_sync_programs),
    ("space", check_space),
    ("inodes", check_inodes),
)
