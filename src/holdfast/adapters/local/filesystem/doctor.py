"""doctor: checks whether a folder is suitable for a queue, and the queue in it.

It probes with real processes in a folder of its own, which it removes afterwards, and it
changes nothing else. Each check is independent. A check that cannot be made is a failed
check result too.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.adapters.local import mounts
from holdfast.adapters.local.filesystem.checks import folders, modes, races, times
from holdfast.adapters.local.filesystem.checks.contents import QueueContents
from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.core.checks import CheckResult, fail
from holdfast.core.clock import SYSTEM_CLOCK, Clock

Check = Callable[..., Iterable[CheckResult]]


class FilesystemDoctor:
    """Examines the queue in `folder`, or the nearest existing folder if there is no queue."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock = SYSTEM_CLOCK,
        fs: FsOps | None = None,
        mounts: Path = mounts.MOUNTS,
        racer: Path = races.RACER,
    ) -> None:
        self._folder, self._clock, self._fs = folder, clock, fs or FsOps()
        self._mounts, self._racer = mounts, racer

    def examine(self) -> Iterator[CheckResult]:
        """Run all checks, and yield each result as soon as it is known."""
        exists = (self._folder / "pending").is_dir()
        if not exists:
            yield fail(
                "queue",
                f"there is no queue at {str(self._folder)!r}",
                "check the name, or make it by pushing: `holdfast push QUEUE '{}'`",
            )
        place = self._folder if exists else _find_nearest_folder(self._folder)
        yield from _run_check("filesystem", mounts.check_mount, place, self._mounts)
        yield from _run_check("synced folder", mounts.check_sync_programs, place)
        yield from _run_check("space", folders.check_space, place)
        if exists:
            yield from _run_check("folders", folders.check_links, place)
            yield from _run_check("access", modes.check_mode, place)
            yield from _run_check("permissions", folders.check_access, place)
            yield from _run_check("one device", folders.check_device, place)
        yield from _run_check("probing", self._probe, place / "tmp" if exists else place)
        if exists:
            yield from _run_check("contents", self._look_inside)

    def _probe(self, where: Path) -> Iterator[CheckResult]:
        with _make_own_folder(where) as own:
            yield from _run_check("rename", races.race_renames, own, self._racer)
            yield from _run_check("link", races.race_links, own, self._racer)
            yield from _run_check("lock", races.probe_lock, own)
            yield from _run_check("clock", times.check_clock, own, self._clock, self._fs)

    def _look_inside(self) -> Iterator[CheckResult]:
        contents = QueueContents(self._folder, self._clock, self._fs)
        try:
            yield from contents.check()
        finally:
            contents.close()


def _run_check(name: str, check: Check, *arguments: Any) -> Iterator[CheckResult]:
    """Yield the check's results, or a failed result if the check cannot be made."""
    try:
        yield from check(*arguments)
    except OSError as error:
        remedy = "give this user the right to write there, or use another folder"
        yield fail(name, f"cannot be checked: {error.strerror or error}", remedy)


@contextmanager
def _make_own_folder(where: Path) -> Iterator[Path]:
    own = Path(tempfile.mkdtemp(prefix=".doctor-", dir=where))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _find_nearest_folder(folder: Path) -> Path:
    """Return the folder, or the first folder above it that exists."""
    for above in (folder, *folder.resolve().parents):
        if above.is_dir():
            return above
    return Path(os.sep)
