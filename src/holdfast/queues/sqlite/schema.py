"""The tables of queues and their messages."""

from holdfast.errors import QueueUnavailable
from holdfast.store.sqlite.connection import Schema

PENDING, LEASED, COMPLETED, FAILED = range(4)  # 4: an empty row that keeps its number

# Files of earlier commits lack these. Results are in a table of their own, because they are
# looked up by the id, which has no index in `messages`. `fence` is the claim that saved the
# result. `worker_notes` is what the console shows of a worker beside `workers`. `beats` are the
# last beats of handlers, written with the renewal of their leases. A beat is only shown while
# that claim holds the message, and deleted some seconds later.
_ADDED_TABLES = (
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
    """
CREATE TABLE IF NOT EXISTS worker_notes (
    worker_no INTEGER PRIMARY KEY,
    queue_no INTEGER NOT NULL,
    version TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL
)
""",
    """
CREATE TABLE IF NOT EXISTS beats (
    message_no INTEGER PRIMARY KEY,
    fence INTEGER NOT NULL,
    beat_ms INTEGER NOT NULL,
    progress REAL
)
""",
)

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
    added_columns=(("messages", "headers", "TEXT"),),
    added_tables=_ADDED_TABLES,
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
    body TEXT NOT NULL,
    headers TEXT
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
