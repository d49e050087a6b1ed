"""What lies in the queue: strangers, leftovers, and leases nobody cares for."""

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
from holdfast.core.clock import Clock, utc

_NAMED = 5  # strangers named one by one
_QUIET_SECONDS = 60.0  # workers show themselves every ten
_MAX_LEASE_MS = 13 * 3_600_000  # twelve hours is the longest that can be asked for


class QueueContents:
    """Reads the queue's folders; changes nothing."""

    def __init__(self, folder: Path, clock: Clock, fs: FsOps) -> None:
        self._folder = folder
        self._tree = QueueDirectory(folder, fs)
        self._timeline = ServerClock(self._tree, clock)
        self._workers = WorkerRegistry(self._tree, self._timeline)
        self._inspector = Inspector(
            self._tree,
            self._timeline,
            self._workers,
            AttemptHistory(self._tree),
            Checkpoints(self._tree),
        )

    def close(self) -> None:
        self._tree.close()

    def check(self) -> Iterator[CheckResult]:
        yield from self._strangers()
        yield from self._leftovers()
        yield from self._attendance()
        yield from self._far_away()

    def _strangers(self) -> Iterator[CheckResult]:
        strange = self._inspector.foreign()
        strange += [name for name in self._tree.list(".") if name not in FOLDERS]
        if not strange:
            yield ok("foreign files", "none")
            return
        more = f" and {len(strange) - _NAMED} more" if len(strange) > _NAMED else ""
        yield warn(
            "foreign files",
            f"{len(strange)} that no queue made, and no worker reads: "
            f"{', '.join(strange[:_NAMED])}{more}",
            f"move them out of {str(self._folder)!r}; push what was meant as work",
        )

    def _leftovers(self) -> Iterator[CheckResult]:
        """tmp/ belongs to whoever is writing, unless that was long ago."""
        before = self._timeline.wall_ms() / 1000 - SWEEP_SECONDS
        statuses = [self._tree.stat(f"tmp/{name}") for name in self._tree.list("tmp")]
        old = sum(1 for status in statuses if status and status.st_mtime < before)
        if old:
            yield warn(
                "leftovers",
                f"{old} files in tmp/ that killed pushes never finished; none was promised",
                "`holdfast purge --older-than 30d` and every starting worker remove them",
            )

    def _attendance(self) -> Iterator[CheckResult]:
        stats = self._inspector.stats()
        seen = self._last_seen()
        quiet = None if seen is None else self._timeline.wall_ms() / 1000 - seen
        since = f"none was seen since {utc(seen):%Y-%m-%d %H:%M:%S} UTC" if seen else "none yet"
        if (stats.expired or stats.ready) and (quiet is None or quiet > _QUIET_SECONDS):
            yield warn(
                "workers",
                f"{stats.ready} messages wait and {stats.expired} leases have run out, but no "
                f"worker polls ({since})",
                "start one: `holdfast work QUEUE MODULE:HANDLER`",
            )
        else:
            yield ok("workers", f"{stats.leased} messages held, {stats.ready} waiting")

    def _last_seen(self) -> float | None:
        times = [
            status.st_mtime
            for name in self._tree.list("workers")
            if name.endswith(".json") and (status := self._tree.stat(f"workers/{name}"))
        ]
        return max(times, default=None)

    def _far_away(self) -> Iterator[CheckResult]:
        """A lease that ends in days was written by a machine whose clock is wrong."""
        now_ms = self._timeline.wall_ms()
        held = filter(None, map(names.LEASED.fullmatch, self._tree.list("leased")))
        far = [m[0] for m in held if names.deadline_ms(m) > now_ms + _MAX_LEASE_MS]
        if far:
            overdue = re.sub(r"~[0-9+]+\.json$", "~0+0+0.json", far[0])
            yield fail(
                "leases",
                f"{len(far)} end more than 13 hours from now, for example {far[0]}: the "
                "clock of the machine that took them was ahead",
                f"set that clock, end that worker, then: mv leased/{far[0]} leased/{overdue}",
            )
