"""Where the measuring happens: a fresh filesystem for every measurement, if we may.

On ext4, files deleted in the last minutes make new ones up to fifty times slower, so one
contender's deletes would slow the next one, and yesterday's deletes would slow all.
As root every measurement gets an ext4 image of its own, made, mounted and thrown away.
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
    """Hands out folders to measure in."""

    description: str
    scratch: Path  # for what is not measured

    def room(self, label: str, *, gib: int = 4) -> AbstractContextManager[Path]:
        """A fresh folder; what was in it is gone afterwards, or at `close`."""

    def settle(self, path: Path) -> None:
        """Write out what filling left to be done: the measured part must not pay for it."""

    def close(self) -> None:
        """Leave nothing behind."""


class FolderArena:
    """Rooms are folders side by side."""

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
        self._count += 1
        path = self._run / f"{self._count:04}-{label.replace(' ', '-')}"
        path.mkdir()
        yield path

    def settle(self, path: Path) -> None:
        _run("sync", "-f", str(path))

    def close(self) -> None:
        shutil.rmtree(self._run, ignore_errors=True)


class ImageArena:
    """Rooms are loop-mounted ext4 images."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._count = 0
        self.scratch = run / "scratch"
        self.description = (
            "every measurement in a fresh ext4 image of its own (loop-mounted), so that no "
            "contender pays for files another one deleted"
        )

    @contextmanager
    def room(self, label: str, *, gib: int = 4) -> Iterator[Path]:
        self._count += 1
        place = self._run / f"{self._count:04}"
        mounted = place / "mounted"
        mounted.mkdir(parents=True)
        image = place / "image"
        _make_image(image, gib)
        _mount(image, mounted)
        try:
            path = mounted / "room"
            path.mkdir()
            yield path
        finally:
            _unmount(mounted)
            shutil.rmtree(place)

    def settle(self, path: Path) -> None:
        # A sync leaves the journal full, and who comes next has to empty it. Going
        # read-only and back empties it too, and leaves the caches warm.
        mounted = next(parent for parent in path.parents if parent.name == "mounted")
        _run("mount", "-o", "remount,ro", str(mounted))
        _run("mount", "-o", "remount,rw", str(mounted))

    def close(self) -> None:
        for mounted in self._run.glob("*/mounted"):
            _unmount(mounted)
        shutil.rmtree(self._run, ignore_errors=True)


def _make_image(image: Path, gib: int) -> None:
    with image.open("wb") as file:
        file.truncate(gib * GIB)
    # An inode per block: a million small files must fit. Nothing left to be initialised
    # in the background, where it would run beside the measuring.
    options = "lazy_itable_init=0,lazy_journal_init=0"
    _run("mkfs.ext4", "-q", "-F", "-i", "4096", "-E", options, str(image))


def _mount(image: Path, mounted: Path) -> None:
    # Direct: or every page would be cached twice, and a million files crowd the memory.
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
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def open_arena(base: Path) -> Arena:
    """The best arena this user can have below `base`."""
    base = base.resolve()
    base.mkdir(parents=True, exist_ok=True)
    _sweep(base)
    run = base / f"run-{os.getpid()}"
    (run / "scratch").mkdir(parents=True)
    if _images_work(run):
        return ImageArena(run)
    return FolderArena(run)


def _images_work(run: Path) -> bool:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        return False
    arena = ImageArena(run)
    try:
        with arena.room("probe", gib=1) as path:
            (path / "probe").write_bytes(b"x")
        return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _sweep(base: Path) -> None:
    """Remove what a killed run left, mounts included."""
    for run in base.glob("run-*"):
        if not Path(f"/proc/{run.name.removeprefix('run-')}").exists():
            ImageArena(run).close()
