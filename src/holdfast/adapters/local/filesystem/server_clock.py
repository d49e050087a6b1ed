"""The clocks of this process, and how they relate to the file server's clock.

Deadlines in names are milliseconds on the writer's timeline: its monotonic clock (which
never jumps and counts suspend) plus an offset to the file server's clock, measured once.
Only processes that share one monotonic clock compare deadlines (`workers.py`). All other
leases are watched (`watch.py`), because clocks of two hosts cannot be compared safely.
"""

import os
from math import ceil
from pathlib import Path
from typing import NamedTuple

from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.core.clock import Clock

PROBE = "workers/.clock"
# A local disk stamps files from our own clock, only coarser. Within this they are one.
SAME_CLOCK_SECONDS = 0.1
# Processes with one monotonic clock measure about the same offset. If the offsets differ by
# more, the machine is a clone, or a clock was set between the two measurements.
SAME_OFFSET_SECONDS = 0.25
# A process may be paused while it measures. A measurement that took longer is repeated.
QUICK_SECONDS = 0.1
MAX_MEASUREMENTS = 5


def boot_id() -> str:
    """Return an id that all processes share since this machine started; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def time_namespace() -> str:
    """Return the identity of our time namespace; empty where the kernel has none.

    The offsets belong to it, because the number of a namespace that ended is used again.
    """
    try:
        offsets = Path("/proc/self/timens_offsets").read_text().split()
        return " ".join([os.readlink("/proc/self/ns/time"), *offsets])
    except OSError:
        return ""


def server_time(tree: QueueDirectory) -> float:
    """The file server's clock, by the stamp it puts on a file touched now."""
    if tree.fs.server_time is not None:
        return tree.fs.server_time()
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = tree.open_file(PROBE, flags)
    try:
        tree.fs.utime(fd)
        return tree.fs.stat(fd).st_mtime
    finally:
        tree.fs.close(fd)


class ClockMeasurement(NamedTuple):
    """The file server's clock, relative to our wall clock and to our monotonic clock."""

    took_seconds: float
    skew: float
    offset: float


class ServerClock:
    """This process's reading of the file server's clock."""

    def __init__(self, tree: QueueDirectory, clock: Clock) -> None:
        self._tree, self.clock = tree, clock
        self.boot_id, self.time_namespace = boot_id(), time_namespace()
        self.offset = self._measure().offset

    def _measure(self) -> ClockMeasurement:
        """Measure until one measurement is quick, a few times at most; keep the quickest."""
        try:
            best = self._measure_once()
            for _ in range(MAX_MEASUREMENTS - 1):
                if best.took_seconds <= QUICK_SECONDS:
                    break
                best = min(best, self._measure_once())
        except OSError:  # read-only, say: good enough to look around; a write will say why
            best = ClockMeasurement(0.0, 0.0, self.clock.time() - self.clock.monotonic())
        self._skew = 0.0 if abs(best.skew) < SAME_CLOCK_SECONDS else best.skew
        return best

    def _measure_once(self) -> ClockMeasurement:
        """Read both own clocks before and after the server's, which is in the middle.

        So a pause shifts the result by half of the time it took, and shows in it.
        """
        began, wall_began = self.clock.monotonic(), self.clock.time()
        server = server_time(self._tree)
        wall_ended, ended = self.clock.time(), self.clock.monotonic()
        return ClockMeasurement(
            took_seconds=ended - began,
            skew=server - (wall_began + wall_ended) / 2,
            offset=server - (began + ended) / 2,
        )

    def stamp_ms(self, now: float) -> int:
        """A monotonic time as it is written in a name: rounded up, in the holder's favour."""
        return ceil((now + self.offset) * 1000)

    def wall_ms(self) -> int:
        """For due times, which producers and workers must agree on: follows the wall clock."""
        return int((self.clock.time() + self._skew) * 1000)

    def server_ms(self) -> int:
        """Ask the file server for its time. Wall times follow the answer from now on."""
        offset = self._measure().offset
        return int((self.clock.monotonic() + offset) * 1000)
