"""Whose clock is right, and how finely are files stamped?"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.adapters.local.filesystem.timeline import SAME_CLOCK_SECONDS, server_time
from holdfast.adapters.local.filesystem.tree import Tree
from holdfast.core.clock import Clock
from holdfast.core.findings import Finding, ok, warn

_MUCH_SECONDS = 5.0


def clock_check(folder: Path, clock: Clock, fs: FsOps) -> Iterator[Finding]:
    """Leases are judged by the file server's clock, so a difference costs no safety."""
    (folder / "workers").mkdir()
    tree = Tree(folder, fs)
    try:
        before = clock.time()
        theirs = server_time(tree)
        ours = (before + clock.time()) / 2
    finally:
        tree.close()
    yield _verdict(theirs - ours)
    yield from _grain(folder)


def _verdict(ahead: float) -> Finding:
    if abs(ahead) < SAME_CLOCK_SECONDS:
        return ok("clock", "the file server's clock is ours")
    which = "ahead of" if ahead > 0 else "behind"
    found = f"the file server's clock is {abs(ahead):,.1f} s {which} ours"
    if abs(ahead) < _MUCH_SECONDS:
        return ok("clock", f"{found}; its clock counts, so nothing is at risk")
    return warn(
        "clock",
        f"{found}; its clock counts, so nothing is at risk, but times shown may puzzle you",
        "let NTP set both clocks",
    )


def _grain(folder: Path) -> Iterator[Finding]:
    """Whole seconds twice in a row are no accident: FAT, ext3 and some shares do that."""
    stamps = []
    for number in range(3):
        path = folder / f"stamp-{number}"
        path.write_bytes(b"")
        stamps.append(os.stat(path).st_mtime_ns)
    yield from grain_verdict(stamps)


def grain_verdict(stamps: Sequence[int]) -> Iterator[Finding]:
    if all(stamp % 1_000_000_000 == 0 for stamp in stamps):
        yield warn(
            "clock",
            "files are stamped in whole seconds here",
            "use leases of 10 s or more when several machines work on this queue",
        )
