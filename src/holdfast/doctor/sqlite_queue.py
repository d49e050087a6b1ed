"""Checks of a queue in a SQLite file. The file is only read."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.doctor.checks import CheckLevel, CheckResult, fail, ok, warn
from holdfast.doctor.runner import CheckFailed, run_checks
from holdfast.doctor.sqlite_file import PLACE, SQLITE_FILE, SqliteFile
from holdfast.doctor.workers import judge_workers
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.manager import QueueStats
from holdfast.queues.sqlite.inspection import count_stats, list_queues
from holdfast.queues.sqlite.schema import QUEUES
from holdfast.queues.sqlite.timeline import read_timeline_ms
from holdfast.store.mounts import MOUNTS
from holdfast.store.sqlite.read_only import ReadOnlyDatabase

_MAX_OFFSET_MS = 5_000
_MAX_NAMED = 5  # queues that are named one by one
_PUSH = "check the name, or make it by pushing: `holdfast push QUEUE '{}'`"


@dataclass(frozen=True, slots=True)
class DatabaseQueue:
    """The queue `name` in a file, or the place of one that does not exist yet."""

    file: SqliteFile
    name: str
    clock: Clock = SYSTEM_CLOCK


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """What the file says about a queue. `now_ms` is on the timeline of its leases."""

    stats: QueueStats
    seen_ms: int | None  # when a worker last polled
    now_ms: int
    wall_ms: int


def examine_sqlite_queue(
    path: Path, name: str, *, clock: Clock = SYSTEM_CLOCK, mounts: Path = MOUNTS
) -> Iterator[CheckResult]:
    """Check the queue of that name in the file, and return the results one by one."""
    queue = DatabaseQueue(SqliteFile(path, QUEUES, mounts), name, clock)
    return run_checks(queue, ("queue", _examine))


def _examine(queue: DatabaseQueue) -> Iterator[CheckResult]:
    if not queue.file.exists:
        yield fail(f"there is no queue at {str(queue.file.path)!r}", _PUSH)
        yield from run_checks(queue.file, *PLACE)
        return
    failed = set()
    for result in run_checks(queue.file, *PLACE, *SQLITE_FILE):
        failed |= {result.check} if result.level is CheckLevel.FAIL else set()
        yield result
    if not failed & {"schema", "integrity"}:  # otherwise it would only fail again
        yield from _check_contents(queue)


def _check_contents(queue: DatabaseQueue) -> Iterator[CheckResult]:
    with queue.file.read() as database:
        snapshot = _read_snapshot(queue, database)
    return run_checks(snapshot, *CONTENTS)


def _read_snapshot(queue: DatabaseQueue, database: ReadOnlyDatabase) -> QueueSnapshot:
    queue_numbers = list_queues(database)
    if queue.name not in queue_numbers:
        others = ", ".join(list(queue_numbers)[:_MAX_NAMED]) or "none"
        raise CheckFailed(
            f"there is no queue {queue.name!r} in {str(queue.file.path)!r}; it has {others}",
            _PUSH,
        )
    now_ms = read_timeline_ms(database.connection, queue.clock)
    stats = count_stats(database, queue_numbers[queue.name], now_ms)
    [workers] = database.query("SELECT max(CAST(seen_ms AS INTEGER)) AS seen_ms FROM workers")
    return QueueSnapshot(stats, workers["seen_ms"], now_ms, int(queue.clock.time() * 1000))


# -- its contents


def check_workers(snapshot: QueueSnapshot) -> Iterator[CheckResult]:
    """Check that a worker polls if there is work."""
    seen = None if snapshot.seen_ms is None else snapshot.seen_ms / 1000
    yield from judge_workers(snapshot.stats, seen, snapshot.now_ms / 1000)


def check_dead_letters(snapshot: QueueSnapshot) -> Iterator[CheckResult]:
    """Check for dead letters."""
    if snapshot.stats.failed:
        yield warn(f"{snapshot.stats.failed:,}", "`holdfast dead list QUEUE` shows why")
    else:
        yield ok("none")


def check_clock(snapshot: QueueSnapshot) -> Iterator[CheckResult]:
    """Compare the timeline with the wall clock, which may have been set since the boot."""
    ahead_ms = snapshot.now_ms - snapshot.wall_ms
    if abs(ahead_ms) < _MAX_OFFSET_MS:
        yield ok("due times and leases are on the wall clock's time")
        return
    direction = "ahead of" if ahead_ms > 0 else "behind"
    yield warn(
        f"the timeline of due times and leases is {abs(ahead_ms) / 1000:,.0f} s {direction} "
        "the wall clock, which was set since the machine started; leases are not affected, "
        "but displayed times are",
        "let NTP set the clock; the next start of the machine makes a new timeline",
    )


CONTENTS = (
    ("workers", check_workers),
    ("dead letters", check_dead_letters),
    ("clock", check_clock),
)
