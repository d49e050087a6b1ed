"""What operators do to messages, in transactions that keep no worker waiting.

cancel   PENDING, LEASED ─▶ FAILED    claims + 1, refunds + 1
redrive  FAILED ─▶ PENDING            refunds = claims, due when no holder trusts its lease
drop     FAILED ─▶ gone
purge    COMPLETED ─▶ gone
"""

import shlex
from collections.abc import Iterator, Sequence
from sqlite3 import Connection

from holdfast.errors import QueueUnavailable
from holdfast.queue.info import CANCELLED
from holdfast.queue.manager import Progress
from holdfast.queues.sqlite import inspection
from holdfast.queues.sqlite.schema import COMPLETED, FAILED, create_results
from holdfast.queues.sqlite.timeline import Timeline
from holdfast.store.sqlite.database import Database

_MAX_ROWS = 500  # in one transaction

_ADD_ATTEMPT = """
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


def add_attempt(
    connection: Connection,
    message_no: int,
    attempt: int,
    outcome: str,
    at_ms: int,
    worker_no: int | None,
    reason: str,
    detail: str | None = None,
) -> None:
    """Add an entry to a message's history, within a transaction of the caller."""
    values = (message_no, attempt, outcome, at_ms, worker_no, reason, detail)
    connection.execute(_ADD_ATTEMPT, values)


class Maintenance:
    """The operators' verbs on one queue."""

    def __init__(self, database: Database, queue_no: int, timeline: Timeline) -> None:
        self._database, self._queue_no, self._timeline = database, queue_no, timeline

    def cancel(self, message_id: str) -> int:
        """Dead-letter the messages of an id that wait or run. Returns how many."""
        # Outside the transaction, because all messages are read to find those of an id.
        numbers = inspection.list_live(self._database, self._queue_no, message_id)
        return self._database.write(
            lambda connection: sum(self._cancel(connection, number) for number in numbers)
        )

    def _cancel(self, connection: Connection, message_no: int) -> bool:
        row = connection.execute(_LIVE, (message_no,)).fetchone()
        if row is None:
            return False
        attempt, worker_no = row
        now_ms = self._timeline.read_ms()
        connection.execute(_CANCEL, (now_ms, CANCELLED, message_no))
        add_attempt(connection, message_no, attempt, "cancelled", now_ms, worker_no, CANCELLED)
        return True

    def redrive(self, message_id: str | None, on_progress: Progress) -> int:
        """Put dead letters back, all or those of one id. Returns how many."""
        redriven = 0
        for numbers in self._slice_dead_letters(message_id):
            redriven += self.redrive_numbers(numbers)
            on_progress(len(numbers))
        return redriven

    def redrive_numbers(self, numbers: Sequence[int]) -> int:
        """Put the dead letters among these messages back. Returns how many."""
        return self._database.write(
            lambda connection: sum(self._redrive(connection, number) for number in numbers)
        )

    def _redrive(self, connection: Connection, message_no: int) -> bool:
        now_ms = self._timeline.read_ms()
        if not connection.execute(_REDRIVE, (now_ms, message_no)).rowcount:
            return False
        reason = "redriven by an operator"
        add_attempt(connection, message_no, 0, "redriven", now_ms, None, reason)
        return True

    def drop(self, message_id: str) -> int:
        """Delete the dead letters of an id. Returns how many."""
        return sum(map(self.drop_numbers, self._slice_dead_letters(message_id)))

    def drop_numbers(self, numbers: Sequence[int]) -> int:
        """Delete the dead letters among these messages. Returns how many."""
        return self._delete(numbers, FAILED)

    def purge(self, older_than_seconds: float) -> int:
        """Delete messages that were completed longer ago than that. Returns how many.

        Raises QueueUnavailable if the file lists messages that it does not have.
        """
        cutoff_ms = self._timeline.read_ms() - int(older_than_seconds * 1000)
        purged = 0
        kept: list[int] = []
        while numbers := inspection.list_completed_before(
            self._database, self._queue_no, cutoff_ms, _MAX_ROWS
        ):
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

    def _slice_dead_letters(self, message_id: str | None) -> Iterator[list[int]]:
        numbers = inspection.list_dead_letters(self._database, self._queue_no, message_id)
        for start in range(0, len(numbers), _MAX_ROWS):
            yield numbers[start : start + _MAX_ROWS]

    def _delete(self, numbers: Sequence[int], state: int) -> int:
        def delete(connection: Connection) -> int:
            deleted = 0
            create_results(connection)
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
