"""The clocks of this process, and how they relate to the file server's clock.

Deadlines in names are milliseconds on the writer's timeline: its monotonic clock (which
never jumps and counts suspend) plus an offset to the file server's clock, measured once.
Only processes that share one monotonic clock compare deadlines (`workers.py`). All other
leases are watched (`workers.py`), because the clocks of two hosts cannot be compared
safely.
"""

import os
from math import ceil
from pathlib import Path
from typing import NamedTuple

from holdfast.lease.clock import Clock
from holdfast.queues.files.directory import QueueDirectory

PROBE = "workers/.clock"
# A local disk stamps files from this host's clock, only coarser. Clocks that differ by less
# than this count as the same clock.
SAME_CLOCK_SECONDS = 0.1
# Processes with one monotonic clock measure about the same offset. If the offsets differ by
# more, the machine is a clone, or a clock was set between the two measurements.
SAME_OFFSET_SECONDS = 0.25
# A process may be paused while it measures. A measurement that took longer is repeated.
MAX_MEASUREMENT_SECONDS = 0.1
MAX_MEASUREMENTS = 5


def read_boot_id() -> str:
    """Return an id that all processes share since this machine started; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_time_namespace() -> str:
    """Return the identity of our time namespace; empty where the kernel has none.

    The offsets belong to it, because the number of a namespace that ended is used again.
    """
    try:
        offsets = Path("/proc/self/timens_offsets").read_text().split()
        return " ".join([os.readlink("/proc/self/ns/time"), *offsets])
    except OSError:
        return ""


def read_server_time(directory: QueueDirectory) -> float:
    """Return the file server's time, from the stamp that it puts on a file written now."""
    if directory.fs.server_time is not None:
        return directory.fs.server_time()
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = directory.open_file(PROBE, flags)
    try:
        directory.fs.utime(fd)
        return directory.fs.stat(fd).st_mtime
    finally:
        directory.fs.close(fd)


class ClockMeasurement(NamedTuple):
    """The file server's clock, relative to our wall clock and to our monotonic clock."""

    duration_seconds: float
    skew: float
    offset: float


class ServerClock:
    """This process's reading of the file server's clock."""

    def __init__(self, directory: QueueDirectory, clock: Clock) -> None:
        self._directory, self.clock = directory, clock
        self.boot_id, self.time_namespace = read_boot_id(), read_time_namespace()
        self.offset = self._measure().offset

    def _measure(self) -> ClockMeasurement:
        """Measure until one measurement is quick, a few times at most; keep the quickest."""
        try:
            best = self._measure_once()
            for _ in range(MAX_MEASUREMENTS - 1):
                if best.duration_seconds <= MAX_MEASUREMENT_SECONDS:
                    break
                best = min(best, self._measure_once())
        except OSError:  # for example read-only: good enough to inspect; a write will raise
            best = ClockMeasurement(0.0, 0.0, self.clock.time() - self.clock.monotonic())
        self._skew = 0.0 if abs(best.skew) < SAME_CLOCK_SECONDS else best.skew
        return best

    def _measure_once(self) -> ClockMeasurement:
        """Read both own clocks before and after the server's, and use their middle.

        A pause shifts the result by at most half of its duration, and it shows in
        `duration_seconds`.
        """
        began, wall_began = self.clock.monotonic(), self.clock.time()
        server = read_server_time(self._directory)
        wall_ended, ended = self.clock.time(), self.clock.monotonic()
        return ClockMeasurement(
            duration_seconds=ended - began,
            skew=server - (wall_began + wall_ended) / 2,
            offset=server - (began + ended) / 2,
        )

    def to_stamp_ms(self, now: float) -> int:
        """Convert a monotonic time to the form in names, rounded up in the holder's favour."""
        return ceil((now + self.offset) * 1000)

    def read_wall_ms(self) -> int:
        """Return the wall time for due times, on which producers and workers must agree."""
        return int((self.clock.time() + self._skew) * 1000)

    def measure_server_ms(self) -> int:
        """Measure the file server's time. Wall times follow this measurement from now on."""
        offset = self._measure().offset
        return int((self.clock.monotonic() + offset) * 1000)
