"""Whose clock is right, and how finely are files stamped?"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.adapters.local.filesystem.directory import QueueDirectory
from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.local.filesystem.server_clock import SAME_CLOCK_SECONDS, server_time
from holdfast.core.checks import CheckResult, ok, warn
from holdfast.core.clock import Clock

_MUCH_SECONDS = 5.0


def clock_check(folder: Path, clock: Clock, fs: FsOps) -> Iterator[CheckResult]:
    """Compare the file server's clock with ours. Leases need neither; due times follow it."""
    (folder / "workers").mkdir()
    tree = QueueDirectory(folder, fs)
    try:
        before = clock.time()
        theirs = server_time(tree)
        ours = (before + clock.time()) / 2
    finally:
        tree.close()
    yield _verdict(theirs - ours)
    yield from _grain(folder)


def _verdict(ahead: float) -> CheckResult:
    if abs(ahead) < SAME_CLOCK_SECONDS:
        return ok("clock", "the file server's clock is ours")
    which = "ahead of" if ahead > 0 else "behind"
    found = f"the file server's clock is {abs(ahead):,.1f} s {which} ours"
    if abs(ahead) < _MUCH_SECONDS:
        return ok("clock", f"{found}; due times follow its clock, and leases need neither")
    return warn(
        "clock",
        f"{found}; due times follow its clock, and leases need neither, but times shown may "
        "puzzle you",
        "let NTP set both clocks",
    )


def _grain(folder: Path) -> Iterator[CheckResult]:
    """Whole seconds twice in a row are no accident: FAT, ext3 and some shares do that."""
    stamps = []
    for number in range(3):
        path = folder / f"stamp-{number}"
        path.write_bytes(b"")
        stamps.append(os.stat(path).st_mtime_ns)
    yield from grain_verdict(stamps)


def grain_verdict(stamps: Sequence[int]) -> Iterator[CheckResult]:
    if all(stamp % 1_000_000_000 == 0 for stamp in stamps):
        yield warn(
            "clock",
            "files are stamped in whole seconds here, so due times are off by up to a second, "
            "and processes may not see that they share a clock",
            "expect work of a killed process to come back up to one lease later, or move the "
            "queue to another filesystem",
        )
