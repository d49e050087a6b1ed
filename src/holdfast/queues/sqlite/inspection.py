"""Reading a queue without changing it: counts and message infos for operators."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from holdfast.errors import QueueUnavailable, StoreUnavailable
from holdfast.lease.clock import Clock, to_utc
from holdfast.queue.manager import (
    Holder,
    MessageInfo,
    MessagePage,
    MessageState,
    PastAttempt,
    QueueStats,
    QueueWorker,
)
from holdfast.queues.sqlite.schema import (
    COMPLETED,
    FAILED,
    LEASED,
    PENDING,
    QUEUES,
)
from holdfast.queues.sqlite.timeline import read_timeline_ms
from holdfast.store.rows import Row
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.read_only import Reader, open_read_only
from holdfast.store.sqlite.rows import cast_columns

STATES = (
    MessageState.PENDING,
    MessageState.LEASED,
    MessageState.COMPLETED,
    MessageState.FAILED,
)
_NO_BEATS: Mapping[tuple[int, int], Row] = MappingProxyType({})
_PAGE = 100  # messages per read, so that a slow reader keeps no transaction open
# Each count is of one range of an index, which takes a third of the time of GROUP BY.
_IN_STATE = "FROM messages WHERE queue_no = ?1 AND state"
_COUNT = f"""
SELECT
    (SELECT count(*) {_IN_STATE} = 0 AND at_ms <= ?2) AS ready,
    (SELECT count(*) {_IN_STATE} = 0 AND at_ms > ?2) AS delayed,
    (SELECT count(*) {_IN_STATE} = 1) AS leased,
    (SELECT count(*) {_IN_STATE} = 1 AND at_ms <= ?2) AS expired,
    (SELECT count(*) {_IN_STATE} = 2) AS completed,
    (SELECT count(*) {_IN_STATE} = 3) AS failed,
    (SELECT min(at_ms) {_IN_STATE} = 0) AS oldest_ms
"""
_HAS_RESULTS = "SELECT 1 FROM sqlite_master WHERE name = 'results'"
_RESULT = """
SELECT CAST(value AS BLOB) AS value FROM results JOIN messages USING (message_no)
WHERE results.queue_no = ? AND results.id = ? AND state = 2 AND claims = fence
ORDER BY message_no DESC LIMIT 1
"""
# Another program may have stored a value of any type in any column, and one such row must not
# keep the others from being listed. So each column is read as the type that it should have.
_INTEGERS = cast_columns(
    "INTEGER", "at_ms", "claims", "refunds", "claimed_ms", "pid", "seen_ms"
)
_TEXTS = cast_columns("TEXT", "id", "reason", "worker_id", "host")
_FROM_MESSAGES = "FROM messages LEFT JOIN workers USING (worker_no)"
# A body of 1 MiB is in pages of its own, which are not read here.
_WITHOUT_BODY = f"SELECT message_no, state, worker_no, {_INTEGERS}, {_TEXTS}"
MESSAGE = f"{_WITHOUT_BODY}, CAST(body AS BLOB) AS body {_FROM_MESSAGES}"
_POSITION = re.compile(r"([0-9]{1,15})-([0-9]{1,15})")
_KEY = re.compile(r"[0-9]{1,18}")
_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
_MAX_WORKERS = 1000
_SEEN_LATELY_MS = 3_600_000
_WORKERS = f"""
SELECT {cast_columns("TEXT", "worker_id", "host", "version")},
    {cast_columns("INTEGER", "pid", "seen_ms", "started_ms")}
FROM workers JOIN worker_notes USING (worker_no)
WHERE queue_no = ?1 AND (seen_ms >= ?2 OR worker_no IN (
    SELECT worker_no FROM messages WHERE queue_no = ?1 AND state = 1))
ORDER BY seen_ms DESC LIMIT ?3
"""
_BEATS = f"""
SELECT message_no, fence, {cast_columns("INTEGER", "beat_ms")},
    {cast_columns("REAL", "progress")}
FROM beats WHERE message_no IN (SELECT value FROM json_each(?))
"""
_ATTEMPTS = f"""
SELECT {cast_columns("INTEGER", "attempt", "at_ms")},
    {cast_columns("TEXT", "outcome", "worker_id", "reason", "detail")}
FROM attempts LEFT JOIN workers USING (worker_no) WHERE message_no = ? ORDER BY entry_no
"""
_CHECKPOINTS = """
SELECT CAST(value AS BLOB) AS value FROM checkpoints
WHERE message_no = ? AND fence <= ? ORDER BY fence DESC
"""
# Pages begin after these positions. A time outside cannot be continued from.
_FIRST, _LAST = (0, 0), (10**15, 0)
_COMPLETED = f"""
WITH RECURSIVE minutes(since_ms) AS (
    SELECT ?2 UNION ALL SELECT since_ms + 60000 FROM minutes WHERE since_ms + 60000 < ?3
)
SELECT (SELECT count(*) {_IN_STATE} = 2 AND at_ms > since_ms AND at_ms <= since_ms + 60000)
    AS count FROM minutes
"""


def list_queues(database: Reader) -> dict[str, int]:
    """Return the number of each queue in the file by its name, in the order of the names."""
    rows = database.query(
        f"SELECT {cast_columns('TEXT', 'name')}, queue_no FROM queues ORDER BY name"
    )
    return {row["name"]: row["queue_no"] for row in rows}


def count_queues(path: Path, clock: Clock) -> dict[str, QueueStats]:
    """Return the counts of each queue in a file by its name. Nothing is created or changed.

    Raises QueueUnavailable, and ConfigError if the file is not a database of queues.
    """
    try:
        with open_read_only(path, QUEUES.name) as database:
            QUEUES.is_current(database.connection, path)
            now_ms = read_timeline_ms(database.connection, clock)
            return {
                name: count_stats(database, queue_no, now_ms)
                for name, queue_no in list_queues(database).items()
            }
    except FileNotFoundError:
        text = f"there is no database {str(path)!r}: check the path, or push to a queue first"
        raise QueueUnavailable(text) from None
    except StoreUnavailable as error:
        raise QueueUnavailable(str(error)) from error


def count_stats(database: Reader, queue_no: int, now_ms: int) -> QueueStats:
    """Count the messages in each state."""
    [row] = database.query(_COUNT, (queue_no, now_ms))
    return QueueStats(
        ready=row["ready"],
        delayed=row["delayed"],
        leased=row["leased"],
        expired=row["expired"],
        completed=row["completed"],
        failed=row["failed"],
        oldest_ready_seconds=(now_ms - row["oldest_ms"]) / 1000 if row["ready"] else None,
    )


def read_result(database: Reader, queue_no: int, message_id: str) -> Any:
    """Return the newest result of a completed message of an id, or None.

    A result that another program damaged counts as none.
    """
    if not is_text(message_id) or not database.query(_HAS_RESULTS):
        return None
    rows = database.query(_RESULT, (queue_no, message_id))
    return next(_parse_values(rows), None)


def list_messages(
    database: Database, queue_no: int, state: MessageState, limit: int
) -> Iterator[MessageInfo]:
    """List the messages in a state in the order of their pushes, without their history."""
    after = 0
    while limit > 0:
        statement = (
            f"{MESSAGE} WHERE queue_no = ? AND state = ? AND message_no > ? "
            "ORDER BY message_no LIMIT ?"
        )
        rows = database.query(
            statement, (queue_no, STATES.index(state), after, min(limit, _PAGE))
        )
        beats = _read_beats(database, rows)
        for row in rows:
            yield make_info(database, row, deep=False, beats=beats)
        if len(rows) < _PAGE:
            return
        limit, after = limit - len(rows), rows[-1]["message_no"]


def browse(
    database: Database, queue_no: int, state: MessageState, after: str | None, limit: int
) -> MessagePage:
    """Return a page of messages without bodies, in the order of the index of states.

    Messages that are finished come with the newest first. A message whose time is not one is
    left out, and only found by `list_messages`, `find` and `search`.
    """
    if STATES.index(state) < COMPLETED:
        start, condition, order = _FIRST, f"> (?, ?) AND messages.at_ms < {_LAST[0]}", "ASC"
    else:
        start, condition, order = _LAST, f"< (?, ?) AND messages.at_ms >= {_FIRST[0]}", "DESC"
    position = _parse_position(after) or start
    values = [queue_no, STATES.index(state), *position, limit + 1]
    statement = (
        f"{_WITHOUT_BODY}, NULL AS body {_FROM_MESSAGES} "
        f"WHERE queue_no = ? AND state = ? AND (messages.at_ms, message_no) {condition} "
        f"ORDER BY messages.at_ms {order}, message_no {order} LIMIT ?"
    )
    rows = database.query(statement, values)
    page = rows[:limit]
    lease_ms = _read_lease_lengths(database) if state is MessageState.LEASED else {}
    beats = _read_beats(database, page)
    messages = [
        make_info(
            database, row, deep=False, lease_ms=lease_ms.get(row["worker_no"]), beats=beats
        )
        for row in page
    ]
    more = len(rows) > limit
    return MessagePage(
        messages, f"{page[-1]['at_ms']}-{page[-1]['message_no']}" if more else None
    )


def _parse_position(after: str | None) -> tuple[int, int] | None:
    """Return the time and number that a page follows; None for text that no page has."""
    match = _POSITION.fullmatch(after or "")
    return (int(match[1]), int(match[2])) if match else None


def _read_lease_lengths(database: Database) -> dict[int, int]:
    """Return the length of the leases of each worker, in milliseconds."""
    if not database.query(_HAS_TABLE, ("worker_notes",)):
        return {}
    statement = (
        f"SELECT worker_no, {cast_columns('INTEGER', 'lease_ms')} FROM worker_notes "
        "ORDER BY worker_no DESC LIMIT ?"
    )
    rows = database.query(statement, (_MAX_WORKERS,))
    return {row["worker_no"]: row["lease_ms"] for row in rows}


def _read_beats(database: Database, rows: Sequence[Row]) -> dict[tuple[int, int], Row]:
    """Return the beats of the messages that are leased, by number and fence."""
    leased = [row["message_no"] for row in rows if row["state"] == LEASED]
    if not leased or not database.query(_HAS_TABLE, ("beats",)):
        return {}
    beats = database.query(_BEATS, (json.dumps(leased),))
    return {(beat["message_no"], beat["fence"]): beat for beat in beats}


def list_workers(database: Database, queue_no: int, now_ms: int) -> list[QueueWorker]:
    """List the workers of a queue that were seen lately, the newest first."""
    if not database.query(_HAS_TABLE, ("worker_notes",)):
        return []
    rows = database.query(_WORKERS, (queue_no, now_ms - _SEEN_LATELY_MS, _MAX_WORKERS))
    return [
        QueueWorker(
            worker_id=row["worker_id"],
            host=row["host"],
            pid=row["pid"],
            last_seen=to_utc(row["seen_ms"] / 1000),
            version=row["version"],
            started=to_utc(row["started_ms"] / 1000),
        )
        for row in rows
    ]


def count_completed(database: Database, queue_no: int, now_ms: int, minutes: int) -> list[int]:
    """Count the messages that were completed in each of the last minutes, oldest first."""
    values = queue_no, now_ms - minutes * 60_000, now_ms
    return [row["count"] for row in database.query(_COMPLETED, values)]


def find(database: Database, queue_no: int, message_id: str) -> list[MessageInfo]:
    """Find all pushes of an id, with history and checkpoint."""
    statement = (
        f"{MESSAGE} WHERE queue_no = ? AND state IN (0, 1, 2, 3) "
        "AND (CAST(messages.id AS TEXT) = ? OR message_no = ?) "
        "ORDER BY message_no"
    )
    if not is_text(message_id):
        return []
    number = int(message_id) if _KEY.fullmatch(message_id) else 0
    rows = database.query(statement, (queue_no, message_id, number))
    beats = _read_beats(database, rows)
    return [make_info(database, row, deep=True, beats=beats) for row in rows]


def find_push(database: Database, queue_no: int, key: str) -> MessageInfo | None:
    """Find one push by its number, without reading other messages."""
    if not _KEY.fullmatch(key):
        return None
    statement = f"{MESSAGE} WHERE message_no = ? AND queue_no = ? AND state IN (0, 1, 2, 3)"
    rows = database.query(statement, (int(key), queue_no))
    beats = _read_beats(database, rows)
    return make_info(database, rows[0], deep=True, beats=beats) if rows else None


def list_dead_letters(database: Database, queue_no: int, message_id: str | None) -> list[int]:
    """List the numbers of the dead letters, all or those of one id."""
    statement = "SELECT message_no FROM messages WHERE queue_no = ? AND state = ?"
    values: tuple[Any, ...] = (queue_no, FAILED)
    if message_id is not None:
        if not is_text(message_id):
            return []
        statement += " AND CAST(id AS TEXT) = ?"
        values += (message_id,)
    return [
        row["message_no"] for row in database.query(statement + " ORDER BY message_no", values)
    ]


def list_live(database: Database, queue_no: int, message_id: str) -> list[int]:
    """List the numbers of the messages of one id that wait or are leased."""
    if not is_text(message_id):
        return []
    statement = (
        "SELECT message_no FROM messages WHERE queue_no = ? AND state IN (?, ?) "
        "AND CAST(id AS TEXT) = ?"
    )
    rows = database.query(statement, (queue_no, PENDING, LEASED, message_id))
    return [row["message_no"] for row in rows]


def list_completed_before(
    database: Database, queue_no: int, cutoff_ms: int, limit: int
) -> list[int]:
    """List the numbers of messages completed by then, up to a limit."""
    statement = (
        "SELECT message_no FROM messages WHERE queue_no = ? AND state = ? "
        "AND at_ms <= ? LIMIT ?"
    )
    rows = database.query(statement, (queue_no, COMPLETED, cutoff_ms, limit))
    return [row["message_no"] for row in rows]


def read_worker_id(database: Database, worker_no: int) -> str:
    """Return a worker's id in texts."""
    statement = f"SELECT {cast_columns('TEXT', 'worker_id')} FROM workers WHERE worker_no = ?"
    rows = database.query(statement, (worker_no,))
    return rows[0]["worker_id"] if rows else str(worker_no)


def read_attempts(database: Database, message_no: int) -> tuple[PastAttempt, ...]:
    """Return how the earlier attempts of a message ended, oldest first."""
    rows = database.query(_ATTEMPTS, (message_no,))
    return tuple(
        PastAttempt(
            attempt=row["attempt"],
            outcome=row["outcome"],
            at=to_utc(row["at_ms"] / 1000),
            worker_id=row["worker_id"] or "",
            reason=row["reason"],
            detail=row["detail"],
        )
        for row in rows
    )


def read_checkpoint(database: Database, message_no: int, fence: int) -> Any:
    """Return the newest checkpoint that was saved up to that claim, or None.

    One that another program damaged gives way to an older one.
    """
    return next(_parse_values(database.query(_CHECKPOINTS, (message_no, fence))), None)


def _parse_values(rows: Sequence[Row]) -> Iterator[Any]:
    """Yield the values that are JSON."""
    for row in rows:
        with suppress(ValueError, RecursionError):
            yield json.loads(row["value"])


def make_info(
    database: Database,
    row: Row,
    *,
    deep: bool,
    lease_ms: int | None = None,
    beats: Mapping[tuple[int, int], Row] = _NO_BEATS,
) -> MessageInfo:
    """Describe a row of MESSAGE; if `deep`, with history and checkpoint."""
    number, state = row["message_no"], row["state"]
    return MessageInfo(
        id=row["id"],
        key=str(number),
        state=STATES[state],
        attempts=row["claims"] - row["refunds"],
        fence=row["claims"],
        where=f"{database.path} message {number}",
        due_at=to_utc(row["at_ms"] / 1000) if state == PENDING else None,
        holder=_make_holder(row, lease_ms, beats) if state == LEASED else None,
        reason=row["reason"] if state == FAILED else None,
        past=read_attempts(database, number) if deep else (),
        checkpoint=read_checkpoint(database, number, row["claims"]) if deep else None,
        body=_parse_body(row["body"]),
    )


def _make_holder(
    row: Row, lease_ms: int | None, beats: Mapping[tuple[int, int], Row]
) -> Holder:
    beat = beats.get((row["message_no"], row["claims"]))
    return Holder(
        worker_id=row["worker_id"] or "",
        timestamp=to_utc((row["claimed_ms"] or 0) / 1000),
        attempt=row["claims"] - row["refunds"],
        expires_at=to_utc(row["at_ms"] / 1000),
        host=row["host"] or "",
        pid=row["pid"] or 0,
        last_seen=to_utc(row["seen_ms"] / 1000) if row["seen_ms"] else None,
        lease_seconds=lease_ms / 1000 if lease_ms else None,
        beat_at=to_utc(beat["beat_ms"] / 1000) if beat else None,
        progress=beat["progress"] if beat else None,
    )


def _parse_body(body: bytes | None) -> dict[str, Any] | None:
    if not body:  # it was not read, and an exception for each row would take half of the time
        return None
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def is_text(text: str) -> bool:
    """Return whether the database can store this as text."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
