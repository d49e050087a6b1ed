"""Reading a queue without changing it: counts and message infos for operators."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.errors import QueueUnavailable, StoreUnavailable
from holdfast.lease.clock import Clock, to_utc
from holdfast.queue.info import Holder, MessageInfo, MessageState, PastAttempt, QueueStats
from holdfast.queues.sqlite.schema import FAILED, LEASED, PENDING, QUEUES
from holdfast.queues.sqlite.timeline import read_timeline_ms
from holdfast.store.rows import Row
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.read_only import Reader, open_read_only
from holdfast.store.sqlite.rows import cast_columns

STATES = tuple(MessageState)  # in the order of their numbers in the schema
# Each count is of one range of an index, which takes a third of the time of GROUP BY.
IN_STATE = "FROM messages WHERE queue_no = ?1 AND state"
_COUNT = f"""
SELECT
    (SELECT count(*) {IN_STATE} = 0 AND at_ms <= ?2) AS ready,
    (SELECT count(*) {IN_STATE} = 0 AND at_ms > ?2) AS delayed,
    (SELECT count(*) {IN_STATE} = 1) AS leased,
    (SELECT count(*) {IN_STATE} = 1 AND at_ms <= ?2) AS expired,
    (SELECT count(*) {IN_STATE} = 2) AS completed,
    (SELECT count(*) {IN_STATE} = 3) AS failed,
    (SELECT min(at_ms) {IN_STATE} = 0) AS oldest_ms
"""
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
_OF_CLAIM = "FROM beats WHERE beats.message_no = messages.message_no AND fence = claims"
_SELECT = f"""
SELECT message_no, state, {_INTEGERS}, {_TEXTS},
    (SELECT CAST(lease_ms AS INTEGER) FROM worker_notes
        WHERE worker_notes.worker_no = messages.worker_no) AS lease_ms,
    (SELECT CAST(beat_ms AS INTEGER) {_OF_CLAIM}) AS beat_ms,
    (SELECT CAST(progress AS REAL) {_OF_CLAIM}) AS progress
"""
# A body of 1 MiB is in pages of its own, which are not read here.
MESSAGE_WITHOUT_BODY = f"{_SELECT}, NULL AS body {_FROM_MESSAGES}"
MESSAGE = f"{_SELECT}, CAST(body AS BLOB) AS body {_FROM_MESSAGES}"
_ATTEMPTS = f"""
SELECT message_no, {cast_columns("INTEGER", "attempt", "at_ms")},
    {cast_columns("TEXT", "outcome", "reason", "detail")},
    ifnull(CAST(worker_id AS TEXT), '') AS worker_id
FROM attempts LEFT JOIN workers USING (worker_no)
WHERE message_no IN (SELECT value FROM json_each(?)) ORDER BY message_no, entry_no
"""
_CHECKPOINTS = """
SELECT CAST(value AS BLOB) AS value FROM checkpoints
WHERE message_no = ? AND fence <= ? ORDER BY fence DESC
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
    oldest_ms = row.pop("oldest_ms")
    oldest_seconds = (now_ms - oldest_ms) / 1000 if row["ready"] else None
    return QueueStats(**row, oldest_ready_seconds=oldest_seconds)


def read_result(database: Reader, queue_no: int, message_id: str) -> Any:
    """Return the newest result of a completed message of an id, or None.

    A result that another program damaged counts as none.
    """
    if not is_text(message_id):
        return None
    rows = database.query(_RESULT, (queue_no, message_id))
    return next(_parse_values(rows), None)


def read_worker_id(database: Database, worker_no: int) -> str:
    """Return a worker's id in texts."""
    statement = f"SELECT {cast_columns('TEXT', 'worker_id')} FROM workers WHERE worker_no = ?"
    rows = database.query(statement, (worker_no,))
    return rows[0]["worker_id"] if rows else str(worker_no)


def read_histories(
    database: Database, numbers: Sequence[int]
) -> dict[int, tuple[PastAttempt, ...]]:
    """Return how the earlier attempts of messages ended, oldest first, by their numbers."""
    histories: dict[int, tuple[PastAttempt, ...]] = dict.fromkeys(numbers, ())
    for row in database.query(_ATTEMPTS, (json.dumps(numbers),)):
        at = to_utc(row.pop("at_ms") / 1000)
        histories[row.pop("message_no")] += (PastAttempt(at=at, **row),)
    return histories


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


def make_infos(database: Database, rows: Sequence[Row], *, deep: bool) -> list[MessageInfo]:
    """Describe rows of MESSAGE; if `deep`, with history and checkpoint."""
    numbers = [row["message_no"] for row in rows]
    histories = read_histories(database, numbers) if deep else {}
    return [
        MessageInfo(
            id=row["id"],
            key=str(number := row["message_no"]),
            state=STATES[state := row["state"]],
            attempts=row["claims"] - row["refunds"],
            fence=row["claims"],
            where=f"{database.path} message {number}",
            due_at=to_utc(row["at_ms"] / 1000) if state == PENDING else None,
            holder=_make_holder(row) if state == LEASED else None,
            reason=row["reason"] if state == FAILED else None,
            past=histories.get(number, ()),
            checkpoint=read_checkpoint(database, number, row["claims"]) if deep else None,
            body=parse_body(row["body"]),
        )
        for row in rows
    ]


def _make_holder(row: Row) -> Holder:
    return Holder(
        worker_id=row["worker_id"] or "",
        timestamp=to_utc((row["claimed_ms"] or 0) / 1000),
        attempt=row["claims"] - row["refunds"],
        expires_at=to_utc(row["at_ms"] / 1000),
        host=row["host"] or "",
        pid=row["pid"] or 0,
        last_seen=to_utc(row["seen_ms"] / 1000) if row["seen_ms"] else None,
        lease_seconds=row["lease_ms"] / 1000 if row["lease_ms"] else None,
        beat_at=to_utc(row["beat_ms"] / 1000) if row["beat_ms"] is not None else None,
        progress=row["progress"],
    )


def parse_body(body: bytes | None) -> dict[str, Any] | None:
    """Return the object in a body, or None if there is none."""
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
