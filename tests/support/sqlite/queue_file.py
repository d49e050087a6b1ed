"""A database file with queues and a manual clock, for the tests of the SQLite queue."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.lease.backoff import Backoff
from holdfast.queue.message import AnyMessage
from holdfast.queues.sqlite.queue import SQLiteQueue
from holdfast.testing import ManualClock
from support.files.queue_folder import LEASE, MAX_ATTEMPTS

Queue = SQLiteQueue[Any]

# A row for each broken rule: its name, and what breaks it.
_FAULTS = """
SELECT 'unknown state', id FROM messages WHERE state NOT BETWEEN 0 AND 4
UNION ALL SELECT 'refunds above claims', id FROM messages WHERE refunds > claims
UNION ALL SELECT 'without a claim', id FROM messages WHERE state IN (1, 2) AND claims = 0
UNION ALL SELECT 'without a holder', id FROM messages LEFT JOIN workers USING (worker_no)
    WHERE state = 1 AND worker_id IS NULL
UNION ALL SELECT 'dead without a reason', id FROM messages
    WHERE state = 3 AND ifnull(reason, '') = ''
UNION ALL SELECT 'history of no message', message_no FROM attempts
    WHERE message_no NOT IN (SELECT message_no FROM messages)
UNION ALL SELECT 'checkpoint of no message', message_no FROM checkpoints
    WHERE message_no NOT IN (SELECT message_no FROM messages)
UNION ALL SELECT 'alive twice in spite of dedupe', id FROM messages
    WHERE dedupe AND state < 3 GROUP BY queue_no, id HAVING count(*) > 1
"""


class QueueFile:
    """Opens queues on one file. Each is another worker, as if in its own process."""

    def __init__(self, root: Path, clock: ManualClock | None = None, **options: Any) -> None:
        self.root = root
        self.clock = clock or ManualClock()
        self._options: dict[str, Any] = {
            "lease_seconds": LEASE,
            "max_attempts": MAX_ATTEMPTS,
            "backoff": Backoff(first_seconds=1.0, max_seconds=1.0),
            **options,
        }

    @property
    def path(self) -> Path:
        return self.root / "work.db"

    def queue(self, **options: Any) -> Queue:
        options = {"clock": self.clock, "machine_clock": self.clock, **self._options, **options}
        return SQLiteQueue(self.path, options.pop("model", AnyMessage), **options)

    def tear(self, message_id: str) -> None:
        """Overwrite the body of a message with half of one."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            torn = connection.execute(
                "UPDATE messages SET body = ? WHERE id = ?", (b'{"id": "a"', message_id)
            )
            assert torn.rowcount == 1


def find_faults(path: Path) -> list[tuple[str, str]]:
    """Find all violations of rules that hold at any time, from the file alone."""
    with closing(sqlite3.connect(path)) as connection:
        [[integrity]] = connection.execute("PRAGMA integrity_check").fetchall()
        if integrity != "ok":
            return [("damaged", integrity)]
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchall():
            return []  # the tables are created in one transaction, or not at all
        return connection.execute(_FAULTS).fetchall()
