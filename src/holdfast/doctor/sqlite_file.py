"""Checks of a SQLite file, and of a queue in it: filesystem, permissions, schema, contents.

The file is only read. Nothing is created or changed.
"""

import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.doctor import filesystem
from holdfast.doctor.checks import (
    CheckFailed,
    CheckLevel,
    CheckResult,
    fail,
    grade,
    ok,
    run_checks,
    warn,
)
from holdfast.doctor.filesystem import PUSH_FIRST, FileQueue, grade_space, judge_workers
from holdfast.errors import StoreUnavailable
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queues.sqlite.inspection import count_stats, list_queues
from holdfast.queues.sqlite.schema import QUEUES
from holdfast.queues.sqlite.timeline import read_timeline_ms
from holdfast.store.mounts import MOUNTS
from holdfast.store.sqlite.connection import Schema
from holdfast.store.sqlite.path_check import format_share_command, require_local
from holdfast.store.sqlite.read_only import ReadOnlyDatabase, get_log_path, open_read_only

_MIB = 1 << 20
_MAX_CHECKED_BYTES = 1024 * _MIB  # a check reads the whole file
_FREE_SPACE = (
    "free some, or move the file to a larger disk: without space for its log not even an ack "
    "can be written, and deleting rows does not make the file smaller"
)
_WARN_LOG_BYTES = 64 * _MIB  # several times what workers let it grow to
_MAX_NAMED = 5  # queues that are named one by one


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


def check_filesystem(file: SqliteFile) -> Iterator[CheckResult]:
    """Check that the filesystem is local and can be written. Raises ConfigError."""
    require_local(file.place.place, file.mounts, file.schema.alternative)
    yield from filesystem.check_filesystem(file.place)


def check_synced_folder(file: SqliteFile) -> Iterator[CheckResult]:
    """Check for programs that copy the folder, because a copy lacks what is in the log."""
    yield from filesystem.check_synced_folder(file.place)


def check_space(file: SqliteFile) -> Iterator[CheckResult]:
    """Check the free bytes."""
    yield grade_space(file.place.free_bytes, _FREE_SPACE)


# -- the file


def check_access(file: SqliteFile) -> Iterator[CheckResult]:
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


PLACE = (check_filesystem, check_synced_folder, check_space)
SQLITE_FILE = (check_access, check_permissions, check_schema, check_log, check_integrity)


# -- a queue in it


def examine_sqlite_queue(
    path: Path, name: str, *, clock: Clock = SYSTEM_CLOCK, mounts: Path = MOUNTS
) -> Iterator[CheckResult]:
    """Check the queue of that name in the file, and return the results one by one."""

    def examine(file: SqliteFile) -> Iterator[CheckResult]:
        if not file.exists:
            yield fail(f"there is no queue at {str(path)!r}", PUSH_FIRST)
            yield from run_checks(file, *PLACE)
            return
        failed = set()
        for result in run_checks(file, *PLACE, *SQLITE_FILE):
            failed |= {result.check} if result.level is CheckLevel.FAIL else set()
            yield result
        if not failed & {"schema", "integrity"}:  # otherwise it would only fail again
            yield from _check_contents(file, name, clock)

    return run_checks(SqliteFile(path, QUEUES, mounts), ("queue", examine))


def _check_contents(file: SqliteFile, name: str, clock: Clock) -> Iterator[CheckResult]:
    with file.read() as database:
        queue_numbers = list_queues(database)
        if name not in queue_numbers:
            others = ", ".join(list(queue_numbers)[:_MAX_NAMED]) or "none"
            raise CheckFailed(
                f"there is no queue {name!r} in {str(file.path)!r}; it has {others}", PUSH_FIRST
            )
        now_ms = read_timeline_ms(database.connection, clock)
        stats = count_stats(database, queue_numbers[name], now_ms)
        [row] = database.query("SELECT max(CAST(seen_ms AS INTEGER)) AS seen_ms FROM workers")
    seen_ms = row["seen_ms"]
    yield judge_workers(stats, None if seen_ms is None else seen_ms / 1000, now_ms / 1000)
    yield grade(
        f"{stats.failed:,}" if stats.failed else "none",
        "`holdfast dead list QUEUE` shows why",
        warns=bool(stats.failed),
        check="dead letters",
    )
