"""Which filesystem is it, and is it mounted in a way that suits a queue?"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.checks import CheckResult, fail, ok, warn

MOUNTS = Path("/proc/mounts")
_OCTAL = re.compile(r"\\([0-7]{3})")
_NFS = {"nfs", "nfs4"}
# A rename is one step on the server, for all who see it.
_SHARED = {"ceph", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2", "fuse.glusterfs", "glusterfs"}
_DOUBTFUL = {"cifs", "smb3", "smbfs", "9p", "virtiofs", "vboxsf", "vmhgfs", "afs", "davfs"}
_MEMORY = {"tmpfs", "ramfs"}
# Files and folders that sync programs leave at the top of what they keep in step.
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
    point: str
    kind: str
    options: frozenset[str]


def parse_mounts(text: str) -> list[Mount]:
    mounts = []
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) >= 4:
            mounts.append(Mount(_plain(words[1]), words[2], frozenset(words[3].split(","))))
    return mounts


def _plain(word: str) -> str:
    """Blanks and backslashes are octal there."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), word)


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount a path is on: the longest point above it, the last where several are."""
    above = [m for m in mounts if os.path.commonpath([path, m.point]) == m.point]
    return max(enumerate(above), key=lambda im: (len(im[1].point), im[0]), default=(0, None))[1]


def mount_check(folder: Path, mounts: Path = MOUNTS) -> Iterator[CheckResult]:
    try:
        found = mount_of(str(folder.resolve()), parse_mounts(mounts.read_text()))
    except OSError:
        found = None
    if found is None:
        yield ok("filesystem", "its kind cannot be told on this system")
        return
    yield _kind(found)
    yield from _options(found)


def _kind(mount: Mount) -> CheckResult:
    on = f"{mount.kind}, mounted at {mount.point}"
    if mount.kind in _MEMORY:
        return warn("filesystem", f"{on}: in memory", "a reboot empties it; use a disk")
    if mount.kind in _NFS or mount.kind in _SHARED:
        return ok("filesystem", f"{on}: a network filesystem whose renames have one winner")
    if mount.kind in _DOUBTFUL or mount.kind.startswith("fuse"):
        return warn(
            "filesystem",
            f"{on}: nobody promises that a rename has one winner for other machines",
            "let one machine use it, or move the queue to a local disk or NFS",
        )
    return ok("filesystem", on)


def _options(mount: Mount) -> Iterator[CheckResult]:
    if "ro" in mount.options:
        yield fail("mount", "mounted read-only", "mount it read-write: mount -o remount,rw")
    if mount.kind not in _NFS:
        return
    if "soft" in mount.options:
        yield warn(
            "mount",
            "mounted soft: a call that timed out may have happened all the same",
            "mount it with the option hard",
        )
    if mount.options & {"nolock", "local_lock=all", "local_lock=flock"}:
        yield warn(
            "mount",
            "locks are local: other machines do not see them",
            "do not use dedupe=True here, or mount it without nolock and local_lock",
        )
    if "lookupcache=none" not in mount.options and "noac" not in mount.options:
        yield ok("mount", "names are cached: another machine's push may show seconds late")


def sync_check(folder: Path) -> Iterator[CheckResult]:
    """Folders that a program copies between machines have no single winner."""
    for above in (folder, *folder.resolve().parents):
        for mark, program in _SYNC_MARKS.items():
            if (above / mark).exists():
                yield fail(
                    "synced folder",
                    f"{program} keeps {str(above)!r} in step by copying: two machines can "
                    "take the same message",
                    "move the queue out of it",
                )
                return
