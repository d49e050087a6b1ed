"""Checks that local queues share: the place, probes in a folder of doctor's own, workers.

A queue relies on one thing only: that a rename and a link have one winner. In folders that
are synced by copying (sync programs, some network drives) two processes can win, and no
protocol on files can repair that.
"""

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import Barrier

from holdfast.doctor.checks import CheckFailed, CheckResult, fail, grade, ok, warn
from holdfast.lease.clock import to_utc
from holdfast.queue.info import QueueStats
from holdfast.queues.files.directory import FsOps
from holdfast.store.mounts import MOUNTS, find_mount
from holdfast.text import format_count

_NFS = {"nfs", "nfs4"}
# On these, a rename is one step on the server, for all machines.
_SHARED = {"ceph", "lustre", "gpfs", "beegfs", "ocfs2", "gfs2", "fuse.glusterfs", "glusterfs"}
_DOUBTFUL = {"cifs", "smb3", "smbfs", "9p", "virtiofs", "vboxsf", "vmhgfs", "afs", "davfs"}
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
_MIB, _GIB = 1 << 20, 1 << 30
_FREE_SPACE = "free some: `holdfast purge --older-than 7d` removes completed messages"

RACERS = 4
HEATS = 250
_PAYLOAD = b"holdfast " * 455  # about 4 KiB, so that an incomplete file shows
_QUIET_SECONDS = 60.0  # workers mark themselves as seen every ten seconds
PUSH_FIRST = (
    "check the name (`holdfast doctor --help` lists what else can be checked), or make it by "
    "pushing: `holdfast push QUEUE '{}'`"
)


@dataclass(frozen=True, slots=True)
class FileQueue:
    """The queue in `folder`, or the place of one that does not exist yet."""

    folder: Path
    fs: FsOps = field(default_factory=FsOps)
    mounts: Path = MOUNTS

    @property
    def exists(self) -> bool:
        """Whether there is a queue."""
        return (self.folder / "pending").is_dir()

    @property
    def place(self) -> Path:
        """The queue's folder if it exists, or else the first folder above it that does."""
        above = (self.folder, *self.folder.resolve().parents)
        return next((folder for folder in above if folder.is_dir()), Path("/"))

    @property
    def free_bytes(self) -> int:
        """The bytes that are free there."""
        return shutil.disk_usage(self.place).free


def check_filesystem(queue: FileQueue) -> Iterator[CheckResult]:
    """Check the kind of the filesystem, and the options that it is mounted with."""
    mount = find_mount(queue.place, queue.mounts)
    if mount is None:
        yield ok("its kind is unknown on this system")
        return
    on = f"{mount.kind}, mounted at {mount.point}"
    if mount.kind in {"tmpfs", "ramfs"}:
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
    if "ro" in mount.options:
        raise CheckFailed("mounted read-only", "mount it read-write: mount -o remount,rw")
    if mount.kind in _NFS:
        yield from _check_nfs_options(mount.options)


def _check_nfs_options(options: Set[str]) -> Iterator[CheckResult]:
    if "soft" in options:
        yield warn(
            "mounted soft: a call that timed out may still have happened",
            "mount it with the option hard",
            check="mount",
        )
    if options & {"nolock", "local_lock=all", "local_lock=flock"}:
        yield warn(
            "locks are local: other machines do not see them",
            "do not use dedupe=True here, or mount it without nolock and local_lock",
            check="mount",
        )
    if not options & {"lookupcache=none", "noac"}:
        late = "names are cached: a push of another machine may appear seconds late"
        yield ok(late, check="mount")


def check_synced_folder(queue: FileQueue) -> Iterator[CheckResult]:
    """Check for folders that a program copies between machines.

    There, two machines can both win a rename, and a copy of a database lacks its log.
    """
    for above in (queue.place, *queue.place.resolve().parents):
        for mark, program in _SYNC_MARKS.items():
            if (above / mark).exists():
                raise CheckFailed(
                    f"{program} syncs {str(above)!r} by copying, so two machines can claim "
                    "the same message",
                    "move the queue out of it",
                )
    yield from ()


def check_space(queue: FileQueue) -> Iterator[CheckResult]:
    """Check the free bytes and inodes. Some filesystems make inodes on demand and report 0."""
    yield grade_space(queue.free_bytes)
    if (disk := os.statvfs(queue.place)).f_files:
        yield grade_inodes(disk.f_favail)


def grade_space(free: int, remedy: str = _FREE_SPACE) -> CheckResult:
    """Return the result for this many free bytes."""
    text = f"{free / _GIB:,.1f} GiB free" if free >= _GIB else f"{free // _MIB} MiB free"
    return grade(text, remedy, fails=free < 64 * _MIB, warns=free < _GIB)


def grade_inodes(free: int) -> CheckResult:
    """Return the result for this many free inodes."""
    text = f"space for {free:,} more files; each message is one file"
    return grade(text, _FREE_SPACE, fails=free < 1_000, warns=free < 100_000, check="inodes")


# -- probes
#
# Each takes the queue that it probes for, with an empty folder of doctor's in the place of its
# own.


def check_rename(probe: FileQueue) -> Iterator[CheckResult]:
    """Check that every rename has one winner, which finds the file complete."""
    for heat in range(HEATS):
        (probe.folder / f"heat-{heat}").write_bytes(_PAYLOAD)

    def try_to_win(heat: int, racer: int) -> bool:
        target = probe.folder / f"won-{heat}-{racer}"
        try:
            probe.fs.rename(probe.folder / f"heat-{heat}", target)
        except FileNotFoundError:
            return False
        return target.read_bytes() == _PAYLOAD

    yield _race(try_to_win)


def check_link(probe: FileQueue) -> Iterator[CheckResult]:
    """Check that a link to an existing name is refused. Worker cards rely on it."""
    (probe.folder / "card").write_bytes(b"")

    def try_to_win(heat: int, racer: int) -> bool:
        try:
            probe.fs.link(probe.folder / "card", probe.folder / f"link-{heat}")
        except FileExistsError:
            return False
        except OSError as error:
            text = f"hard links do not work: {error.strerror}"
            raise CheckFailed(text, "use another folder") from error
        return True

    yield _race(try_to_win)


def _race(try_to_win: Callable[[int, int], bool]) -> CheckResult:
    """Let threads race for each file, and check that each had one winner.

    The filesystem gets the calls of all threads at once, as it would those of processes.
    """
    start = Barrier(RACERS)

    def run(racer: int) -> list[int]:
        start.wait()
        return [heat for heat in range(HEATS) if try_to_win(heat, racer)]

    with ThreadPoolExecutor(RACERS) as pool:
        winners = Counter(chain.from_iterable(pool.map(run, range(RACERS))))
    other_folder = (
        "do not use this folder with more than one process: choose one on a local disk or NFS"
    )
    if twice := sum(1 for count in winners.values() if count > 1):
        return fail(f"{twice} of {HEATS} files were won by two threads", other_folder)
    if lost := HEATS - len(winners):
        return fail(f"{lost} of {HEATS} files had no winner or were incomplete", other_folder)
    return ok(f"{RACERS} threads raced for {HEATS} files: each had one winner")


def check_lock(probe: FileQueue) -> Iterator[CheckResult]:
    """Check flock, which serializes the pushes of one id when dedupe is on."""
    path = probe.folder / "lock"
    no_dedupe = "do not use dedupe=True here; everything else works without locks"
    with open(path, "wb") as first, open(path, "wb") as second:
        try:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield warn(f"flock does not work: {error.strerror}", no_dedupe)
            return
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield ok("flock refuses a second lock")
        else:
            yield warn("flock allows two locks at once", no_dedupe)


# -- workers


def judge_workers(stats: QueueStats, seen: float | None, now: float) -> CheckResult:
    """Return a warning if there is work, but no worker was seen for a while.

    `seen` is the time when a worker was last seen, on the same clock as `now`.
    """
    is_quiet = seen is None or now - seen > _QUIET_SECONDS
    if not ((stats.expired or stats.ready) and is_quiet):
        text = f"{format_count(stats.leased, 'message')} held, {stats.ready:,} waiting"
        return ok(text, check="workers")
    since = f"last seen {to_utc(seen):%Y-%m-%d %H:%M:%S} UTC" if seen else "none seen yet"
    return warn(
        f"{format_count(stats.ready, 'message')} waiting and "
        f"{format_count(stats.expired, 'expired lease')}, but no worker polls ({since})",
        "start one: `holdfast work QUEUE MODULE:HANDLER`",
        check="workers",
    )


FILESYSTEM = (check_filesystem, check_synced_folder, check_space)
PROBES = (check_rename, check_link, check_lock)
