"""What operators see and do, in transactions that keep no worker waiting.

cancel   PENDING, LEASED ─▶ FAILED    claims + 1, refunds + 1
redrive  FAILED ─▶ PENDING            refunds = claims, due when no holder trusts its lease
drop     FAILED ─▶ gone
purge    COMPLETED ─▶ gone
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from sqlite3 import Connection
from typing import Any

from holdfast.errors import QueueUnavailable
from holdfast.lease.clock import to_utc
from holdfast.queue.info import (
    CANCELLED,
    MessageInfo,
    MessagePage,
    MessageState,
    QueueWorker,
)
from holdfast.queue.operator import Progress, QueueOperator, ignore_progress
from holdfast.queues.sqlite.inspection import (
    IN_STATE,
    MESSAGE,
    MESSAGE_WITHOUT_BODY,
    STATES,
    is_text,
    make_infos,
)
from holdfast.queues.sqlite.schema import COMPLETED, FAILED
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.rows import cast_columns

_MAX_ROWS = 500  # in one transaction
_PAGE = 100  # messages per read, so that a slow reader keeps no transaction open
_POSITION = re.compile(r"([0-9]{1,15})-([0-9]{1,15})")
_KEY = re.compile(r"[0-9]{1,18}")
_MAX_WORKERS = 1000
_SEEN_LATELY_MS = 3_600_000
# Pages begin after these positions. A time outside cannot be continued from.
_FIRST, _LAST = (0, 0), (10**15, 0)
_WORKERS = f"""
SELECT {cast_columns("TEXT", "worker_id", "host", "version")},
    {cast_columns("INTEGER", "pid", "seen_ms", "started_ms")}
FROM workers JOIN worker_notes USING (worker_no)
WHERE queue_no = ?1 AND (seen_ms >= ?2 OR worker_no IN (
    SELECT worker_no FROM messages WHERE queue_no = ?1 AND state = 1))
ORDER BY seen_ms DESC LIMIT ?3
"""
_COMPLETED = f"""
WITH RECURSIVE minutes(since_ms) AS (
    SELECT ?2 UNION ALL SELECT since_ms + 60000 FROM minutes WHERE since_ms + 60000 < ?3
)
SELECT (SELECT count(*) {IN_STATE} = 2 AND at_ms > since_ms AND at_ms <= since_ms + 60000)
    AS count FROM minutes
"""
# Of a message's history: message_no, attempt, outcome, at_ms, worker_no, reason, detail
ADD_ATTEMPT = """
INSERT INTO attempts
SELECT ?1, ifnull(max(entry_no), 0) + 1, ?2, ?3, ?4, ?5, ?6, ?7
FROM attempts WHERE message_no = ?1
"""
_LIVE = """
SELECT claims - refunds, CASE state WHEN 1 THEN worker_no END FROM messages
WHERE message_no = ? AND state IN (0, 1)
"""
# The holder of a cancelled message trusts its lease until its end or its next renewal. The end
# is kept in `claimed_ms`, which is before `at_ms` for all other dead letters.
_CANCEL = """
UPDATE messages
SET state = 3, at_ms = ?, claims = claims + 1, refunds = refunds + 1, reason = ?,
    claimed_ms = CASE state WHEN 1 THEN at_ms END
WHERE message_no = ?
"""
# A message whose id was pushed again with dedupe stays a dead letter. A cancelled one waits for
# what is left of its holder's lease. That is never more than was left when it was cancelled,
# also if the machine's timeline began anew since then.
_REDRIVE = """
UPDATE OR IGNORE messages
SET state = 0, refunds = claims, reason = NULL,
    at_ms = ?1 + max(0, min(ifnull(claimed_ms, 0) - at_ms, ifnull(claimed_ms, 0) - ?1))
WHERE message_no = ?2 AND state = 3
"""
# A number must not be given twice, because a stale lease could then hold another message. The
# next one is the highest plus one, so the row with the highest stays, and is empty.
_EMPTY_LAST = """
UPDATE messages SET state = 4, id = '', body = '', reason = NULL
WHERE message_no = ?1 AND state = ?2 AND message_no = (SELECT max(message_no) FROM messages)
"""
_DELETE = "DELETE FROM messages WHERE message_no = ?1 AND state = ?2"
_DELETE_EMPTY = """
DELETE FROM messages
WHERE queue_no = ? AND state = 4 AND message_no < (SELECT max(message_no) FROM messages)
"""


class SQLiteOperator(QueueOperator):
    """The raw access of operators to one queue in a database."""

    def __init__(
        self,
        name: str,
        capabilities: frozenset[str],
        database: Database,
        queue_no: int,
        read_ms: Callable[[], int],
    ) -> None:
        super().__init__(name, capabilities)
        self._database, self._queue_no, self._read_ms = database, queue_no, read_ms

    # -- reading

    def peek(self, state: MessageState, limit: int = 100) -> Iterator[MessageInfo]:
        """Yield messages in the order of their pushes, without their history."""
        return self._scan((state,), limit=limit)

    def scan(
        self, states: Iterable[MessageState], *, with_history: bool
    ) -> Iterator[MessageInfo]:
        """Yield messages in the order of their pushes, none twice.

        All numbers are listed first, because they do not change while messages move.
        """
        return self._scan(states, deep=with_history)

    def _scan(
        self, states: Iterable[MessageState], *, deep: bool = False, limit: int = -1
    ) -> Iterator[MessageInfo]:
        condition = f"state IN ({', '.join(str(STATES.index(state)) for state in states)})"
        numbers = self._list_numbers(condition, in_order=True, limit=limit)
        for page in _slice(numbers, _PAGE):
            where = f"{condition} AND message_no IN (SELECT value FROM json_each(?))"
            yield from self._read(f"{where} ORDER BY message_no", json.dumps(page), deep=deep)

    def browse(
        self, state: MessageState, *, after: str | None = None, limit: int = 50
    ) -> MessagePage:
        """Return a page in the order of the index of states.

        Messages that are finished come with the newest first. A message whose time is not one
        is left out, and only found by `peek`, `find` and `search`.
        """
        if STATES.index(state) < COMPLETED:
            start, order = _FIRST, "ASC"
            condition = f"> (?, ?) AND messages.at_ms < {_LAST[0]}"
        else:
            start, order = _LAST, "DESC"
            condition = f"< (?, ?) AND messages.at_ms >= {_FIRST[0]}"
        match = _POSITION.fullmatch(after or "")
        position = (int(match[1]), int(match[2])) if match else start
        rows = self._database.query(
            f"{MESSAGE_WITHOUT_BODY} "
            f"WHERE queue_no = ? AND state = ? AND (messages.at_ms, message_no) {condition} "
            f"ORDER BY messages.at_ms {order}, message_no {order} LIMIT ?",
            [self._queue_no, STATES.index(state), *position, limit + 1],
        )
        page = rows[:limit]
        messages = make_infos(self._database, page, deep=False)
        more = len(rows) > limit
        return MessagePage(
            messages, f"{page[-1]['at_ms']}-{page[-1]['message_no']}" if more else None
        )

    def workers(self) -> list[QueueWorker]:
        since_ms = self._read_ms() - _SEEN_LATELY_MS
        return [
            QueueWorker(
                last_seen=to_utc(row.pop("seen_ms") / 1000),
                started=to_utc(row.pop("started_ms") / 1000),
                **row,
            )
            for row in self._database.query(_WORKERS, (self._queue_no, since_ms, _MAX_WORKERS))
        ]

    def count_completed(self, minutes: int = 60) -> list[int]:
        now_ms = self._read_ms()
        values = self._queue_no, now_ms - minutes * 60_000, now_ms
        return [row["count"] for row in self._database.query(_COMPLETED, values)]

    def find(self, message_id: str) -> list[MessageInfo]:
        if not is_text(message_id):
            return []
        number = int(message_id) if _KEY.fullmatch(message_id) else 0
        where = (
            "queue_no = ? AND state IN (0, 1, 2, 3) "
            "AND (CAST(messages.id AS TEXT) = ? OR message_no = ?) ORDER BY message_no"
        )
        return self._read(where, self._queue_no, message_id, number, deep=True)

    def find_push(self, key: str) -> MessageInfo | None:
        """Find one push by its number, without reading other messages."""
        if not _KEY.fullmatch(key):
            return None
        where = "message_no = ? AND queue_no = ? AND state IN (0, 1, 2, 3)"
        return next(iter(self._read(where, int(key), self._queue_no, deep=True)), None)

    def _read(self, where: str, *values: Any, deep: bool = False) -> list[MessageInfo]:
        rows = self._database.query(f"{MESSAGE} WHERE {where}", values)
        return make_infos(self._database, rows, deep=deep)

    # -- changing

    def cancel(self, message_id: str) -> int:
        # Outside the transaction, because all messages are read to find those of an id.
        numbers = self._list_numbers("state IN (0, 1)", message_id)
        return self._database.write(
            lambda connection: sum(self._cancel(connection, number) for number in numbers)
        )

    def _cancel(self, connection: Connection, message_no: int) -> bool:
        row = connection.execute(_LIVE, (message_no,)).fetchone()
        if row is None:
            return False
        attempt, worker_no = row
        now_ms = self._read_ms()
        connection.execute(_CANCEL, (now_ms, CANCELLED, message_no))
        entry = (message_no, attempt, "cancelled", now_ms, worker_no, CANCELLED, None)
        connection.execute(ADD_ATTEMPT, entry)
        return True

    def redrive(
        self, message_id: str | None = None, *, on_progress: Progress = ignore_progress
    ) -> int:
        redriven = 0
        for numbers in self._slice_dead_letters(message_id):
            redriven += self._redrive_numbers(numbers)
            on_progress(len(numbers))
        return redriven

    def redrive_many(self, messages: Sequence[MessageInfo]) -> int:
        return self._redrive_numbers([int(message.key) for message in messages])

    def _redrive_numbers(self, numbers: Sequence[int]) -> int:
        return self._database.write(
            lambda connection: sum(self._redrive(connection, number) for number in numbers)
        )

    def _redrive(self, connection: Connection, message_no: int) -> bool:
        now_ms = self._read_ms()
        if not connection.execute(_REDRIVE, (now_ms, message_no)).rowcount:
            return False
        reason = "redriven by an operator"
        entry = (message_no, 0, "redriven", now_ms, None, reason, None)
        connection.execute(ADD_ATTEMPT, entry)
        return True

    def drop(self, message_id: str) -> int:
        slices = self._slice_dead_letters(message_id)
        return sum(self._delete(numbers, FAILED) for numbers in slices)

    def drop_many(self, messages: Sequence[MessageInfo]) -> int:
        return self._delete([int(message.key) for message in messages], FAILED)

    def purge(self, older_than_seconds: float) -> int:
        """Purge messages. Raises QueueUnavailable if the file lists some that it lacks."""
        cutoff_ms = self._read_ms() - int(older_than_seconds * 1000)
        purged = 0
        kept: list[int] = []
        completed = f"state = {COMPLETED} AND at_ms <= {cutoff_ms}"
        while numbers := self._list_numbers(completed, limit=_MAX_ROWS):
            if numbers == kept:
                raise QueueUnavailable(
                    f"the queue {str(self._database.path)!r} is unavailable: its index is "
                    f"damaged, after {purged:,} messages were purged; stop the workers and run "
                    f"sqlite3 {shlex.quote(str(self._database.path))} REINDEX"
                )
            deleted = self._delete(numbers, COMPLETED)
            purged += deleted
            # Another process may have deleted them first, but then they are not listed again.
            kept = [] if deleted else numbers
        return purged

    def _slice_dead_letters(self, message_id: str | None) -> Iterator[Sequence[int]]:
        numbers = self._list_numbers(f"state = {FAILED}", message_id, in_order=True)
        return _slice(numbers, _MAX_ROWS)

    def _list_numbers(
        self,
        condition: str,
        message_id: str | None = None,
        *,
        in_order: bool = False,
        limit: int = -1,  # SQLite reads it as no limit
    ) -> list[int]:
        """List the numbers of messages, all or those of one id."""
        if message_id is not None and not is_text(message_id):
            return []
        statement = f"SELECT message_no FROM messages WHERE queue_no = ? AND {condition}"
        values: tuple[Any, ...] = (self._queue_no,)
        if message_id is not None:
            statement += " AND CAST(id AS TEXT) = ?"
            values += (message_id,)
        statement += " ORDER BY message_no" if in_order else ""
        rows = self._database.query(f"{statement} LIMIT {limit}", values)
        return [row["message_no"] for row in rows]

    def _delete(self, numbers: Sequence[int], state: int) -> int:
        def delete(connection: Connection) -> int:
            deleted = 0
            for number in numbers:
                if any(
                    connection.execute(statement, (number, state)).rowcount
                    for statement in (_EMPTY_LAST, _DELETE)
                ):
                    deleted += 1
                    for table in ("attempts", "checkpoints", "results"):
                        connection.execute(
                            f"DELETE FROM {table} WHERE message_no = ?", (number,)
                        )
            connection.execute(_DELETE_EMPTY, (self._queue_no,))
            return deleted

        return self._database.write(delete)


def _slice(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
