"""Checks of a file queue's contents: foreign files, leftovers, workers and deadlines."""

import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.adapters.local.filesystem import names
from holdfast.adapters.local.filesystem.checkpoints import Checkpoints
from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.local.filesystem.history import AttemptHistory
from holdfast.adapters.local.filesystem.housekeeping import SWEEP_SECONDS
from holdfast.adapters.local.filesystem.inspector import Inspector
from holdfast.adapters.local.filesystem.layout import FOLDERS
from holdfast.adapters.local.filesystem.server_clock import ServerClock
from holdfast.adapters.local.filesystem.workers import WorkerRegistry
from holdfast.core.checks import CheckResult, fail, ok, warn
from holdfast.core.clock import Clock, to_utc

_MAX_NAMED = 5  # foreign files that are named one by one
_QUIET_SECONDS = 60.0  # workers mark themselves as seen every ten seconds
_MAX_LEASE_MS = 13 * 3_600_000  # a lease can be twelve hours at most


class QueueContents:
    """The contents of a queue's folders, which the checks only read."""

    def __init__(self, folder: Path, clock: Clock, fs: FsOps) -> None:
        self.folder = folder
        self.directory = QueueDirectory(folder, fs)
        self.server_clock = ServerClock(self.directory, clock)
        self.inspector = Inspector(
            self.directory,
            self.server_clock,
            WorkerRegistry(self.directory, self.server_clock),
            AttemptHistory(self.directory),
            Checkpoints(self.directory),
        )

    def close(self) -> None:
        """Close the queue's folder."""
        self.directory.close()


def check_foreign_files(contents: QueueContents) -> Iterator[CheckResult]:
    """Check for files that no queue made."""
    foreign = contents.inspector.find_foreign()
    foreign += [name for name in contents.directory.list(".") if name not in FOLDERS]
    if not foreign:
        yield ok("none")
        return
    more = f" and {len(foreign) - _MAX_NAMED} more" if len(foreign) > _MAX_NAMED else ""
    yield warn(
        f"{len(foreign)} that were not made by a queue and are not read by workers: "
        f"{', '.join(foreign[:_MAX_NAMED])}{more}",
        f"move them out of {str(contents.folder)!r}, and push those that are work",
    )


def check_leftovers(contents: QueueContents) -> Iterator[CheckResult]:
    """Check tmp/ for old files. Newer files belong to processes that are writing."""
    before = contents.server_clock.read_wall_ms() / 1000 - SWEEP_SECONDS
    directory = contents.directory
    statuses = [directory.stat(f"tmp/{name}") for name in directory.list("tmp")]
    if old := sum(1 for status in statuses if status and status.st_mtime < before):
        yield warn(
            f"{old} files in tmp/ of killed pushes, none of which was reported as pushed",
            "`holdfast purge --older-than 30d` and every starting worker remove them",
        )


def check_workers(contents: QueueContents) -> Iterator[CheckResult]:
    """Check that a worker polls if there is work."""
    stats = contents.inspector.count_stats()
    seen = _read_last_seen(contents.directory)
    quiet = None if seen is None else contents.server_clock.read_wall_ms() / 1000 - seen
    since = f"last seen {to_utc(seen):%Y-%m-%d %H:%M:%S} UTC" if seen else "none seen yet"
    if (stats.expired or stats.ready) and (quiet is None or quiet > _QUIET_SECONDS):
        yield warn(
            f"{stats.ready} messages wait and {stats.expired} leases have run out, but no "
            f"worker polls ({since})",
            "start one: `holdfast work QUEUE MODULE:HANDLER`",
        )
    else:
        yield ok(f"{stats.leased} messages held, {stats.ready} waiting")


def _read_last_seen(directory: QueueDirectory) -> float | None:
    times = [
        status.st_mtime
        for name in directory.list("workers")
        if name.endswith(".json") and (status := directory.stat(f"workers/{name}"))
    ]
    return max(times, default=None)


def check_far_deadlines(contents: QueueContents) -> Iterator[CheckResult]:
    """Check for leases that end in days, which a machine with a wrong clock wrote."""
    now_ms = contents.server_clock.read_wall_ms()
    held = filter(None, map(names.LEASED.fullmatch, contents.directory.list("leased")))
    far = [m[0] for m in held if names.parse_deadline_ms(m) > now_ms + _MAX_LEASE_MS]
    if far:
        overdue = re.sub(r"~[0-9+]+\.json$", "~0+0+0.json", far[0])
        yield fail(
            f"{len(far)} end more than 13 hours from now, for example {far[0]}: the "
            "clock of the machine that claimed them was ahead",
            f"set that clock, end that worker, then: mv leased/{far[0]} leased/{overdue}",
        )


CONTENTS = (
    ("foreign files", check_foreign_files),
    ("leftovers", check_leftovers),
    ("workers", check_workers),
    ("leases", check_far_deadlines),
)
