"""The tables of queues and their messages."""

from sqlite3 import Connection

from holdfast.errors import QueueUnavailable
from holdfast.store.sqlite.connection import Schema, has_column

PENDING, LEASED, COMPLETED, FAILED = range(4)  # 4: an empty row that keeps its number

# Results are in a table of their own, because they are looked up by the id, which has no
# index in `messages`. The table is created when it is first needed, so files of earlier
# versions can be used, too. `fence` is the claim that saved the result.
_CREATE_RESULTS = (
    """
CREATE TABLE IF NOT EXISTS results (
    message_no INTEGER PRIMARY KEY,
    queue_no INTEGER NOT NULL,
    id TEXT NOT NULL,
    fence INTEGER NOT NULL,
    value BLOB NOT NULL
)
""",
    "CREATE INDEX IF NOT EXISTS results_by_id ON results (queue_no, id)",
)

# The column of headers is added when a message with headers is first pushed or claimed. Earlier
# versions name every column that they use, so they ignore it.
_ADD_HEADERS = "ALTER TABLE messages ADD COLUMN headers TEXT"

# What the console shows of a worker beside `workers`, whose columns earlier versions wrote.
_CREATE_WORKER_NOTES = """
CREATE TABLE IF NOT EXISTS worker_notes (
    worker_no INTEGER PRIMARY KEY,
    queue_no INTEGER NOT NULL,
    version TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL
)
"""

# The last beat of a handler, written with the renewal of its lease. It is only shown while that
# claim holds the message, and deleted some seconds later.
_CREATE_BEATS = """
CREATE TABLE IF NOT EXISTS beats (
    message_no INTEGER PRIMARY KEY,
    fence INTEGER NOT NULL,
    beat_ms INTEGER NOT NULL,
    progress REAL
)
"""

# `at_ms` is when the message is due, when its lease ends, or when it was completed or
# dead-lettered. In a dead letter that was cancelled while it was leased, `claimed_ms` is when
# that lease ends. `claims` never falls, so it is the fence. Only messages that were pushed with
# dedupe are in `ids`. Small pages are faster, because each changed page is written to the log.
QUEUES = Schema(
    name="queue",
    content="messages",
    alternative="SQS",
    version=1,
    application_id=0x486F6C51,
    page_bytes=2048,
    is_bound=True,
    unavailable=QueueUnavailable,
    tables="""
CREATE TABLE queues (queue_no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE boots (boot_id TEXT PRIMARY KEY, offset_ms INTEGER NOT NULL);
CREATE TABLE workers (
    worker_no INTEGER PRIMARY KEY AUTOINCREMENT,
    worker_id TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    seen_ms INTEGER NOT NULL
);
CREATE TABLE messages (
    message_no INTEGER PRIMARY KEY,
    queue_no INTEGER NOT NULL,
    state INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    dedupe INTEGER NOT NULL,
    claims INTEGER NOT NULL,
    refunds INTEGER NOT NULL,
    worker_no INTEGER,
    claimed_ms INTEGER,
    id TEXT NOT NULL,
    reason TEXT,
    body TEXT NOT NULL
);
CREATE INDEX states ON messages (queue_no, state, at_ms);
CREATE UNIQUE INDEX ids ON messages (queue_no, id) WHERE dedupe AND state < 3;
CREATE TABLE attempts (
    message_no INTEGER NOT NULL,
    entry_no INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    worker_no INTEGER,
    reason TEXT NOT NULL,
    detail TEXT,
    PRIMARY KEY (message_no, entry_no)
) WITHOUT ROWID;
CREATE TABLE checkpoints (
    message_no INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (message_no, fence)
) WITHOUT ROWID
""",
)


def add_headers(connection: Connection) -> None:
    """Add the column of headers if it is missing, within a transaction of the caller."""
    if not has_column(connection, "messages", "headers"):
        connection.execute(_ADD_HEADERS)


def create_worker_notes(connection: Connection) -> None:
    """Create the tables of notes and beats if missing, in a transaction of the caller."""
    connection.execute(_CREATE_WORKER_NOTES)
    connection.execute(_CREATE_BEATS)


def create_results(connection: Connection) -> None:
    """Create the table of results if it is missing, within a transaction of the caller."""
    for statement in _CREATE_RESULTS:
        connection.execute(statement)
