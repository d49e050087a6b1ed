"""Kill a process between any two SQL statements, and check what it left."""

import sqlite3
from collections.abc import Callable
from threading import Lock
from typing import Any

from holdfast.exports.sqlite_jobs import SQLiteJobs
from holdfast.store.sqlite.database import Database
from support.files.crash import die, run_in_child

COUNTERS_AND_ROWS = """
SELECT completed_tasks, failed_tasks, total_tasks - remaining_tasks,
    (SELECT count(*) FROM tasks WHERE job_no = jobs.job_no AND status = 'COMPLETED'),
    (SELECT count(*) FROM tasks WHERE job_no = jobs.job_no AND status = 'FAILED')
FROM jobs
"""


class StatementCounter:
    """Counts the statements of all connections once armed, BEGIN and COMMIT included.

    The process dies before statement number `kill_at`, and so after the one before it. Made in
    a child process, because it replaces `sqlite3.connect` for the rest of it.
    """

    def __init__(self, kill_at: int | None = None) -> None:
        self._kill_at = kill_at
        self._lock = Lock()
        self.armed = False
        self.count = 0
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect

        def connect_traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection = connect(*args, **kwargs)
            connection.set_trace_callback(self._trace)
            return connection

        sqlite3.connect = connect_traced  # type: ignore[assignment]

    def _trace(self, statement: str) -> None:
        with self._lock:
            if not self.armed:
                return
            self.count += 1
            if self.count == self._kill_at:
                die()


def count_kills(
    database: Database, act: Callable[[], object], check: Callable[[], object]
) -> int:
    """Kill a child at each statement of `act` in turn, and return how often.

    `check` is called after each kill. At last, the child does it all.
    """

    def play(_: Callable[[str], None]) -> None:
        statements = StatementCounter(kills + 1)
        with database.begin_write():
            pass  # opening the connection is not counted
        statements.armed = True
        act()

    kills = 0
    while run_in_child(play).killed:
        kills += 1
        check()
    return kills


def assert_counters_match_rows(jobs: SQLiteJobs) -> None:
    """Compare counters and rows in one read, because other processes may be writing (I-JB-1,
    I-JB-2).
    """
    with jobs._database.begin_read() as connection:
        completed, failed, processed, *rows = connection.execute(COUNTERS_AND_ROWS).fetchone()
    assert [completed, failed] == rows
    assert processed == completed + failed
