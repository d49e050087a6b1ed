"""Checks of the filesystem: its kind, its mount options, and programs that sync it."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.checks import CheckResult, fail, ok, warn

MOUNTS = Path("/proc/mounts")
_OCTAL = re.compile(r"\\(?P<code>[0-7]{3})")
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


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted filesystem."""

    point: str
    kind: str
    options: frozenset[str]


def parse_mounts(text: str) -> list[Mount]:
    """Parse the text of /proc/mounts."""
    mounts = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) >= 4:
            mounts.append(Mount(_unescape(words[1]), words[2], frozenset(words[3].split(","))))
    return mounts


def _unescape(word: str) -> str:
    """Replace the octal escapes of blanks and backslashes."""
    return _OCTAL.sub(lambda match: chr(int(match["code"], 8)), word)


def find_mount(path: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount of a path: the longest mount point above it, and the last of these."""
    above = [m for m in mounts if os.path.commonpath([path, m.point]) == m.point]
    return max(enumerate(above), key=lambda im: (len(im[1].point), im[0]), default=(0, None))[1]


def check_mount(folder: Path, mounts: Path = MOUNTS) -> Iterator[CheckResult]:
    """Check the kind and the mount options of the folder's filesystem."""
    try:
        mount = find_mount(str(folder.resolve()), parse_mounts(mounts.read_text()))
    except OSError:
        mount = None
    if mount is None:
        yield ok("filesystem", "its kind is unknown on this system")
        return
    yield _check_kind(mount)
    yield from _check_options(mount)


def _check_kind(mount: Mount) -> CheckResult:
    on = f"{mount.kind}, mounted at {mount.point}"
    if mount.kind in _MEMORY:
        return warn("filesystem", f"{on}: in memory", "a reboot empties it; use a disk")
    if mount.kind in _NFS or mount.kind in _SHARED:
        return ok("filesystem", f"{on}: a network filesystem whose renames have one winner")
    if mount.kind in _DOUBTFUL or mount.kind.startswith("fuse"):
        return warn(
            "filesystem",
            f"{on}: it is not guaranteed that a rename has one winner among several machines",
            "let one machine use it, or move the queue to a local disk or NFS",
        )
    return ok("filesystem", on)


def _check_options(mount: Mount) -> Iterator[CheckResult]:
    if "ro" in mount.options:
        yield fail("mount", "mounted read-only", "mount it read-write: mount -o remount,rw")
    if mount.kind not in _NFS:
        return
    if "soft" in mount.options:
        yield warn(
            "mount",
            "mounted soft: a call that timed out may still have happened",
            "mount it with the option hard",
        )
    if mount.options & {"nolock", "local_lock=all", "local_lock=flock"}:
        yield warn(
            "mount",
            "locks are local: other machines do not see them",
            "do not use dedupe=True here, or mount it without nolock and local_lock",
        )
    if "lookupcache=none" not in mount.options and "noac" not in mount.options:
        yield ok("mount", "names are cached: a push of another machine may appear seconds late")


def check_sync_programs(folder: Path) -> Iterator[CheckResult]:
    """Check for folders that a program copies between machines.

    There, two machines can both win a rename.
    """
    for above in (folder, *folder.resolve().parents):
        for mark, program in _SYNC_MARKS.items():
            if (above / mark).exists():
                yield fail(
                    "synced folder",
                    f"{program} syncs {str(above)!r} by copying, so two machines can claim "
                    "the same message",
                    "move the queue out of it",
                )
                return
