"""The folders to measure in: a fresh filesystem for every measurement, if possible.

On ext4, files deleted in the last minutes make new ones up to fifty times slower, so one
contender's deletes would slow the next one, and yesterday's deletes would slow all.
As root, every measurement gets its own ext4 image, which is created, mounted and deleted.
Otherwise all share one folder, and nothing in it is deleted before the end.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

GIB = 1024**3


class Arena(Protocol):
    """A source of folders to measure in."""

    description: str
    scratch: Path  # for what is not measured

    def room(self, label: str, *, gib: int = 4) -> AbstractContextManager[Path]:
        """Yield a fresh folder. Its content is deleted afterwards, or at `close`."""

    def settle(self, path: Path) -> None:
        """Write out the caches after filling, so that the measurement does not pay for it."""

    def close(self) -> None:
        """Delete everything."""


class FolderArena:
    """An arena whose rooms are folders in one folder."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._count = 0
        self.scratch = run / "scratch"
        self.description = (
            "all contenders in one folder, nothing deleted before the end; contenders that "
            "delete files (dirq, huey FileStorage, task-queue) may slow the others"
        )

    @contextmanager
    def room(self, label: str, *, gib: int = 4) -> Iterator[Path]:
        """Yield a fresh folder."""
        self._count += 1
        path = self._run / f"folder-{self._count:04}-{label.replace(' ', '-')}"
        path.mkdir()
        yield path

    def settle(self, path: Path) -> None:
        """Write out the caches of the folder's filesystem."""
        _run("sync", "-f", str(path))

    def close(self) -> None:
        """Delete everything."""
        shutil.rmtree(self._run, ignore_errors=True)


class ImageArena:
    """An arena whose rooms are loop-mounted images of ext4."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._count = 0
        self.scratch = run / "scratch"
        self.description = "a fresh loop-mounted ext4 image for every measurement"

    @contextmanager
    def room(self, label: str, *, gib: int = 4) -> Iterator[Path]:
        """Yield a fresh folder."""
        self._count += 1
        place = self._run / f"image-{self._count:04}"
        mounted = place / "mounted"
        mounted.mkdir(parents=True)
        image = place / "image"
        with image.open("wb") as file:
            file.truncate(gib * GIB)
        _run(*_MAKE.split(), str(image))
        _mount(image, mounted)
        try:
            path = mounted / "room"
            path.mkdir()
            yield path
        finally:
            _unmount(mounted)
            shutil.rmtree(place)

    def settle(self, path: Path) -> None:
        """Write out the caches of the folder's filesystem."""
        # A sync leaves the journal full, and the next writer has to empty it. Remounting
        # read-only and back empties it too, and leaves the caches warm.
        mounted = next(parent for parent in path.parents if parent.name == "mounted")
        _run("mount", "-o", "remount,ro", str(mounted))
        _run("mount", "-o", "remount,rw", str(mounted))

    def close(self) -> None:
        """Delete everything."""
        for mounted in self._run.glob("*/mounted"):
            _unmount(mounted)
        shutil.rmtree(self._run, ignore_errors=True)


# An inode per block, because a million small files must fit. Everything is initialised now,
# because in the background it would disturb the measurement.
_MAKE = "mkfs.ext4 -q -F -i 4096 -E lazy_itable_init=0,lazy_journal_init=0"


def _mount(image: Path, mounted: Path) -> None:
    # Direct I/O, or every page would be cached twice and a million files fill the memory.
    device = _run("losetup", "--find", "--show", "--direct-io=on", str(image)).strip()
    try:
        _run("mount", "-o", "relatime", device, str(mounted))
    finally:
        _run("losetup", "--detach", device)  # takes effect when it is unmounted


def _unmount(mounted: Path) -> None:
    for attempt in range(20):
        if not os.path.ismount(mounted):
            return
        lazily = ["--lazy"] if attempt == 19 else []
        subprocess.run(["umount", *lazily, str(mounted)], capture_output=True, check=False)
        if os.path.ismount(mounted):
            time.sleep(0.25)  # a child that is just ending may still hold it


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise


def open_arena(base: Path) -> Arena:
    """Return the best arena that this user can have below `base`."""
    base = base.resolve()
    base.mkdir(parents=True, exist_ok=True)
    _sweep(base)
    run = base / f"run-{os.getpid()}"
    (run / "scratch").mkdir(parents=True)
    return ImageArena(run) if _can_mount(run) else FolderArena(run)


def _can_mount(run: Path) -> bool:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        return False
    try:
        with ImageArena(run).room("probe", gib=1) as path:
            (path / "probe").write_bytes(b"x")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _sweep(base: Path) -> None:
    """Remove what a killed run left behind, including mounts."""
    for run in base.glob("run-*"):
        if not Path(f"/proc/{run.name.removeprefix('run-')}").exists():
            ImageArena(run).close()
