"""The timeline of a machine: milliseconds that only grow, and that no clock step moves.

All processes of a machine share one monotonic clock. The first that opens the file after a
start of the machine notes by how much the wall clock is ahead of it, and all others use the
same offset. Due times and deadlines are on this timeline. Where a start of the machine has no
id (macOS), each process takes the wall clock when it opens the file.
"""

from pathlib import Path
from sqlite3 import Connection

from holdfast.lease.clock import Clock
from holdfast.store.sqlite.database import Database

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS = Path("/proc/self/timens_offsets")
# No holder survived the restart. If the clock went back, their leases would last for hours.
_LAST_SEEN = "SELECT ifnull(max(CAST(seen_ms AS INTEGER)), 0) FROM workers"
_END_LEASES = """
UPDATE messages SET at_ms = ?1
WHERE queue_no IN (SELECT queue_no FROM queues) AND state = 1 AND at_ms > ?1
"""


def agree_on_offset(database: Database, clock: Clock) -> int:
    """Return by how many milliseconds the timeline is ahead of the monotonic clock."""
    # Read first, because inspecting a queue must not wait for its writers.
    with database.begin_read() as connection:
        offset_ms = _find_offset(connection)
    if offset_ms is None:
        with database.begin_write() as connection:
            offset_ms = _agree(connection, clock)
    return offset_ms


def _agree(connection: Connection, clock: Clock) -> int:
    if (agreed_ms := _find_offset(connection)) is not None:
        return agreed_ms
    now_ms = int(clock.time() * 1000)
    # A machine whose clock went back while it was off continues where the timeline ended.
    last_ms: int = connection.execute(_LAST_SEEN).fetchone()[0]
    offset_ms = max(now_ms, last_ms) - int(clock.monotonic() * 1000)
    if boot_id := _read_boot_id():
        connection.execute(
            "INSERT OR REPLACE INTO boots VALUES (?, ?)",
            (boot_id, offset_ms + _read_namespace_ms()),
        )
        connection.execute(_END_LEASES, (max(now_ms, last_ms),))
    return offset_ms


def _find_offset(connection: Connection) -> int | None:
    """Return the offset of this start of the machine, or None if it has none yet."""
    row = connection.execute(
        "SELECT offset_ms FROM boots WHERE boot_id = ? AND typeof(offset_ms) = 'integer'",
        (_read_boot_id(),),
    ).fetchone()
    return None if row is None else int(row[0]) - _read_namespace_ms()


def read_timeline_ms(connection: Connection, clock: Clock) -> int:
    """Return the time on the timeline without agreeing on one.

    It is the wall clock's time if no process has opened the file since the machine started.
    """
    if (offset_ms := _find_offset(connection)) is None:
        return int(clock.time() * 1000)
    return int(clock.monotonic() * 1000) + offset_ms


def _read_boot_id() -> str:
    """Return an id that all processes share since this machine started; empty if unknown."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _read_namespace_ms() -> int:
    """Return by how much the clock of our time namespace is ahead of the machine's."""
    try:
        lines = [line.split() for line in _OFFSETS.read_text().splitlines()]
    except OSError:
        return 0
    return next(
        (int(s) * 1000 + int(ns) // 1_000_000 for name, s, ns in lines if name == "boottime"), 0
    )
