"""Whose clock counts: the file server's, told apart from our own.

Deadlines in names are milliseconds on the writer's timeline: its monotonic clock (which
never jumps and counts suspend) plus an offset to the file server's clock, taken once.
Processes of the same boot compare on the monotonic clock they share, so a stepped wall
clock can neither expire a live lease nor keep a dead one; other hosts compare by the
server's clock, asked afresh.
"""

import os
from math import ceil
from pathlib import Path

from holdfast.adapters.local.filesystem.tree import Tree
from holdfast.core.clock import Clock

PROBE = "workers/.clock"
# A local disk stamps files from our own clock, only coarser. Within this they are one.
SAME_CLOCK_SECONDS = 0.1
# How old an answer of the server may be. Asking costs a few calls, for each look at leases.
ASK_SECONDS = 0.2
# How far two hosts' readings of the server's clock may be apart.
OTHER_HOST_MARGIN_MS = 250


def boot_id() -> str:
    """The same for all processes since this machine started; empty when unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def server_time(tree: Tree) -> float:
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


class Timeline:
    """This process's reading of the file server's clock."""

    def __init__(self, tree: Tree, clock: Clock) -> None:
        self._tree, self._clock = tree, clock
        self.boot_id = boot_id()
        self._skew = self._measure_skew()
        self._server = (clock.monotonic(), clock.time() + self._skew)
        self.offset = clock.time() + self._skew - clock.monotonic()

    def _measure_skew(self) -> float:
        try:
            skew = server_time(self._tree) - self._clock.time()
        except OSError:  # read-only, say: good enough to look around; a write will say why
            return 0.0
        return 0.0 if abs(skew) < SAME_CLOCK_SECONDS else skew

    def stamp_ms(self, now: float) -> int:
        """A monotonic time as it is written in a name: rounded up, in the holder's favour."""
        return ceil((now + self.offset) * 1000)

    def lease_ms(self) -> int:
        """For judging deadlines: never jumps."""
        return int((self._clock.monotonic() + self.offset) * 1000)

    def wall_ms(self) -> int:
        """For due times, which producers and workers must agree on: follows the wall clock."""
        return int((self._clock.time() + self._skew) * 1000)

    def server_ms(self) -> int:
        """The server's clock asked afresh, or a moment ago and counted on from there."""
        now = self._clock.monotonic()
        asked_at, said = self._server
        if now - asked_at >= ASK_SECONDS:
            self._skew = self._measure_skew()
            asked_at, said = self._server = now, self._clock.time() + self._skew
        return int((said + now - asked_at) * 1000)
