"""Checks of a SQLite file: its filesystem, permissions, schema, log and contents.

The file is only read. Nothing is created or changed.
"""

import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.doctor.checks import CheckResult, fail, grade, ok, warn
from holdfast.doctor.filesystem import (
    MEMORY_KINDS,
    FileQueue,
    check_sync_programs,
    grade_space,
)
from holdfast.doctor.runner import CheckFailed
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.store.mounts import MOUNTS, find_mount
from holdfast.store.sqlite.connection import Schema
from holdfast.store.sqlite.path_check import format_share_command, require_local
from holdfast.store.sqlite.read_only import (
    ReadOnlyDatabase,
    get_log_path,
    open_read_only,
)

_MIB = 1 << 20
_MAX_CHECKED_BYTES = 1024 * _MIB  # a check reads the whole file
_FREE_SPACE = (
    "free some, or move the file to a larger disk: without space for its log not even an ack "
    "can be written, and deleting rows does not make the file smaller"
)
_WARN_LOG_BYTES = 64 * _MIB  # several times what workers let it grow to


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A file with tables of this schema, or the place of one that does not exist yet."""

    path: Path
    schema: Schema
    mounts: Path = MOUNTS

    @property
    def exists(self) -> bool:
        """Whether there is a database."""
        return self.path.is_file() and self.path.stat().st_size > 0

    @property
    def files(self) -> list[Path]:
        """The file, and the files that SQLite keeps beside it while it is open."""
        real = self.path.resolve()
        beside = (get_log_path(real), real.with_name(f"{real.name}-shm"))
        return [path for path in (real, *beside) if path.exists()]

    @property
    def place(self) -> FileQueue:
        """The folder of the file, as the checks of a queue on files take it."""
        return FileQueue(self.path.parent, mounts=self.mounts)

    @contextmanager
    def read(self) -> Iterator[ReadOnlyDatabase]:
        """Open the file for reading. Raises CheckFailed."""
        try:
            with open_read_only(self.path, self.schema.name) as database:
                yield database
        except StoreUnavailable as error:
            remedy = (
                "repair this first; if the file is damaged, restore a backup, or save what "
                f"can be read: sqlite3 {shlex.quote(str(self.path))} .recover"
            )
            raise CheckFailed(str(error), remedy) from error


# -- the place


def check_mount(file: SqliteFile) -> Iterator[CheckResult]:
    """Check the kind of the filesystem, and whether it can be written."""
    place = file.place.place
    try:
        require_local(place, file.mounts, file.schema.alternative)
    except ConfigError as error:
        yield fail(str(error), "move the file to a local disk")
        return
    if (mount := find_mount(place, file.mounts)) is None:
        yield ok("its kind is unknown on this system")
        return
    on = f"{mount.kind}, mounted at {mount.point}"
    if "ro" in mount.options:
        yield fail(f"{on}: read-only", "mount it read-write: mount -o remount,rw")
    elif mount.kind in MEMORY_KINDS:
        yield warn(f"{on}: in memory", "a reboot empties it; use a disk")
    else:
        yield ok(on)


def check_folder(file: SqliteFile) -> Iterator[CheckResult]:
    """Check for programs that copy the folder, because a copy lacks what is in the log."""
    yield from check_sync_programs(file.place)


def check_free_space(file: SqliteFile) -> Iterator[CheckResult]:
    """Check the free bytes."""
    yield grade_space(shutil.disk_usage(file.place.place).free, _FREE_SPACE)


# -- the file


def check_modes(file: SqliteFile) -> Iterator[CheckResult]:
    """Check which users can read the file and its log."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in file.files}
    shown = ", ".join(f"{path.name} {mode:04o}" for path, mode in modes.items())
    path = shlex.quote(str(file.path))
    if any(mode & 0o007 for mode in modes.values()):
        yield warn(
            f"every user of this machine can read or write it ({shown}), although it holds "
            f"{file.schema.content}",
            f"chmod o= {path}*",
        )
    elif len({mode & 0o060 for mode in modes.values()}) > 1:
        yield warn(
            f"its group can use only some of the files ({shown})",
            f"chmod g= {path}*; or share it: {format_share_command(file.path)}",
        )
    else:
        shared = modes[file.path.resolve()] & 0o060 == 0o060
        yield ok(f"{'shared with its group' if shared else 'private'} ({shown})")


def check_permissions(file: SqliteFile) -> Iterator[CheckResult]:
    """Check that this user can use the file, and create its log in the folder."""
    needed = [(path, os.R_OK | os.W_OK) for path in file.files]
    needed.append((file.path.resolve().parent, os.R_OK | os.W_OK | os.X_OK))
    if closed := [str(path) for path, access in needed if not os.access(path, access)]:
        yield fail(
            f"this user cannot read and write {', '.join(closed)}",
            f"run all processes as one user, or share it: {format_share_command(file.path)}",
        )
    else:
        yield ok("this user can read and write the file and its folder")


def check_schema(file: SqliteFile) -> Iterator[CheckResult]:
    """Check that the tables are those of this version."""
    with file.read() as database:
        is_current = file.schema.is_current(database.connection, file.path)
    if is_current:
        yield ok(f"version {file.schema.version}")
    else:
        yield warn(
            f"it is not of version {file.schema.version}",
            "the next process that opens it updates it",
        )


def check_log(file: SqliteFile) -> Iterator[CheckResult]:
    """Check the size of the log, which grows while a reader keeps it from being emptied."""
    log = get_log_path(file.path)
    size = log.stat().st_size if log.exists() else 0
    yield grade(
        f"{log.name} has {size / _MIB:,.1f} MiB",
        "if it stays so large, a program that reads keeps it from being emptied: end it, for "
        f"example a viewer; this names it: fuser -v {shlex.quote(str(file.path))}",
        fails=False,
        warns=size > _WARN_LOG_BYTES,
    )


def check_integrity(file: SqliteFile) -> Iterator[CheckResult]:
    """Check that the file is not damaged, unless it is so large that this takes minutes."""
    command = f"sqlite3 -readonly {shlex.quote(str(file.path))} 'PRAGMA quick_check'"
    if (size := file.path.stat().st_size) > _MAX_CHECKED_BYTES:
        yield ok(f"not checked, because it has {size / 1024 / _MIB:,.1f} GiB: {command}")
        return
    with file.read() as database:
        [[problem]] = database.connection.execute("PRAGMA quick_check(1)").fetchall()
    if problem == "ok":
        yield ok("no damage was found")
    else:
        yield fail(
            f"the file is damaged: {' '.join(problem.split())}",
            f"stop the workers and restore a backup; {command} names all of the damage",
        )


PLACE = (
    ("filesystem", check_mount),
    ("synced folder", check_folder),
    ("space", check_free_space),
)
SQLITE_FILE = (
    ("access", check_modes),
    ("permissions", check_permissions),
    ("schema", check_schema),
    ("log", check_log),
    ("integrity", check_integrity),
)
