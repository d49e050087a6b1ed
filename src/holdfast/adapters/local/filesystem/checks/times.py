"""Checks of the clocks, and of the resolution of file times."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.local.filesystem.server_clock import SAME_CLOCK_SECONDS, read_server_time
from holdfast.core.checks import CheckResult, ok, warn
from holdfast.core.clock import Clock

_MAX_OFFSET_SECONDS = 5.0


def check_clock(folder: Path, clock: Clock, fs: FsOps) -> Iterator[CheckResult]:
    """Compare the file server's clock with this host's.

    Leases need neither clock. Due times follow the file server's.
    """
    (folder / "workers").mkdir()
    directory = QueueDirectory(folder, fs)
    try:
        before = clock.time()
        server_now = read_server_time(directory)
        local_now = (before + clock.time()) / 2
    finally:
        directory.close()
    yield _judge_offset(server_now - local_now)
    yield from _check_time_grain(folder)


def _judge_offset(ahead: float) -> CheckResult:
    if abs(ahead) < SAME_CLOCK_SECONDS:
        return ok("clock", "the file server's clock is this host's clock")
    direction = "ahead of" if ahead > 0 else "behind"
    text = f"the file server's clock is {abs(ahead):,.1f} s {direction} this host's"
    if abs(ahead) < _MAX_OFFSET_SECONDS:
        return ok("clock", f"{text}; due times follow its clock, and leases need neither")
    return warn(
        "clock",
        f"{text}; due times follow its clock, and leases need neither, but displayed times "
        "may be wrong",
        "let NTP set both clocks",
    )


def _check_time_grain(folder: Path) -> Iterator[CheckResult]:
    """Stamp several files; whole seconds each time mean FAT, ext3 or some network shares."""
    stamps = []
    for number in range(3):
        path = folder / f"stamp-{number}"
        path.write_bytes(b"")
        stamps.append(os.stat(path).st_mtime_ns)
    yield from judge_time_grain(stamps)


def judge_time_grain(stamps: Sequence[int]) -> Iterator[CheckResult]:
    """Yield a warning if all of these file times, in nanoseconds, are whole seconds."""
    if all(stamp % 1_000_000_000 == 0 for stamp in stamps):
        yield warn(
            "clock",
            "files are stamped in whole seconds here, so due times are off by up to a second, "
            "and processes may not see that they share a clock",
            "expect work of a killed process to come back up to one lease later, or move the "
            "queue to another filesystem",
        )
