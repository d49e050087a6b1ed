"""doctor: is this folder fit for a queue, and is the queue in it well?

It probes with real processes in a folder of its own, removed afterwards, and changes
nothing else. Each check stands alone: one that cannot be made is a finding too.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.adapters.local.filesystem.checks import folders, modes, mounts, races, times
from holdfast.adapters.local.filesystem.checks.contents import QueueContents
from holdfast.adapters.local.filesystem.fsops import FsOps
from holdfast.core.checks import CheckResult, fail
from holdfast.core.clock import SYSTEM_CLOCK, Clock

Check = Callable[..., Iterable[CheckResult]]


class FilesystemDoctor:
    """Examines the queue in `folder`; or, when there is none yet, where it would be."""

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
        """One finding after the other, as they are made."""
        there = (self._folder / "pending").is_dir()
        if not there:
            yield fail(
                "queue",
                f"there is none at {str(self._folder)!r}",
                "check the name, or make it by pushing: `holdfast push QUEUE '{}'`",
            )
        place = self._folder if there else _nearest(self._folder)
        yield from _made("filesystem", mounts.mount_check, place, self._mounts)
        yield from _made("synced folder", mounts.sync_check, place)
        yield from _made("space", folders.space_check, place)
        if there:
            yield from _made("folders", folders.link_check, place)
            yield from _made("access", modes.mode_check, place)
            yield from _made("permissions", folders.access_check, place)
            yield from _made("one device", folders.device_check, place)
        yield from _made("probing", self._probe, place / "tmp" if there else place)
        if there:
            yield from _made("contents", self._look_inside)

    def _probe(self, where: Path) -> Iterator[CheckResult]:
        with _own_folder(where) as own:
            yield from _made("rename", races.rename_race, own, self._racer)
            yield from _made("link", races.link_race, own, self._racer)
            yield from _made("lock", races.lock_probe, own)
            yield from _made("clock", times.clock_check, own, self._clock, self._fs)

    def _look_inside(self) -> Iterator[CheckResult]:
        contents = QueueContents(self._folder, self._clock, self._fs)
        try:
            yield from contents.check()
        finally:
            contents.close()


def _made(name: str, check: Check, *given: Any) -> Iterator[CheckResult]:
    """The check's findings; that it cannot be made is one as well."""
    try:
        yield from check(*given)
    except OSError as error:
        remedy = "give this user the right to write there, or use another folder"
        yield fail(name, f"cannot be checked: {error.strerror or error}", remedy)


@contextmanager
def _own_folder(where: Path) -> Iterator[Path]:
    own = Path(tempfile.mkdtemp(prefix=".doctor-", dir=where))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _nearest(folder: Path) -> Path:
    """The first folder above that exists."""
    for above in (folder, *folder.resolve().parents):
        if above.is_dir():
            return above
    return Path(os.sep)
