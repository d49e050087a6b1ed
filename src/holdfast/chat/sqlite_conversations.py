"""The conversation store in a SQLite file, for all threads and processes of one machine."""

from pathlib import Path

from holdfast.chat.row_store import RowConversationStore
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.rows import Rows
from holdfast.store.sqlite.connection import Durability, Schema
from holdfast.store.sqlite.database import Database, MemoryDatabase
from holdfast.store.sqlite.rows import RowConnection

# Processed and parked messages refer to their conversation by its key, because it need not
# exist. Every growing table is read by a key or an index, so a turn costs the same however long
# the history is. Rows that expire have an index by time, so finding them is cheap.
CONVERSATIONS = Schema(
    name="conversation store",
    content="conversations",
    version=1,
    application_id=0x48464356,  # "HFCV"
    tables="""
CREATE TABLE conversations (
    conversation_no INTEGER PRIMARY KEY,
    conversation_id TEXT NOT NULL,
    primary_channel TEXT NOT NULL,
    channel_config TEXT NOT NULL,
    ai_config TEXT NOT NULL,
    status TEXT NOT NULL,
    previous_status TEXT NOT NULL DEFAULT '',
    messages TEXT NOT NULL DEFAULT '[]',
    message_count INTEGER NOT NULL DEFAULT 0,
    thread_id TEXT NOT NULL DEFAULT '',
    thread_mark TEXT NOT NULL DEFAULT '',
    last_assistant_message_sid TEXT NOT NULL DEFAULT '',
    prompt_tokens INTEGER NOT NULL DEFAULT 0,
    completion_tokens INTEGER NOT NULL DEFAULT 0,
    outbox TEXT,
    lock_owner TEXT NOT NULL DEFAULT '',
    lock_trigger TEXT NOT NULL DEFAULT '',
    lock_expires_at REAL NOT NULL DEFAULT 0,
    lock_fence INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    UNIQUE (conversation_id, primary_channel)
);
CREATE INDEX conversations_by_update ON conversations (updated_at);
CREATE TABLE messages (
    conversation_no INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    role TEXT NOT NULL,
    body TEXT NOT NULL,
    at REAL NOT NULL,
    message_sid TEXT NOT NULL,
    details TEXT NOT NULL,
    PRIMARY KEY (conversation_no, seq)
);
CREATE TABLE stage (
    conversation_id TEXT NOT NULL,
    message_sid TEXT NOT NULL,
    primary_channel TEXT NOT NULL,
    body TEXT,
    received_at REAL,
    staged_at REAL NOT NULL,
    media TEXT,
    unreadable TEXT,
    expires_at REAL NOT NULL,
    PRIMARY KEY (conversation_id, message_sid)
);
CREATE INDEX stage_by_expiry ON stage (expires_at);
CREATE TABLE windows (
    conversation_id TEXT PRIMARY KEY,
    trigger_id TEXT NOT NULL,
    owner_sid TEXT NOT NULL,
    opened_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    triggered INTEGER NOT NULL
);
CREATE TABLE processed (
    conversation_id TEXT NOT NULL,
    primary_channel TEXT NOT NULL,
    message_sid TEXT NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (conversation_id, primary_channel, message_sid)
) WITHOUT ROWID;
CREATE INDEX processed_by_expiry ON processed (expires_at);
CREATE TABLE parked (
    parked_id TEXT PRIMARY KEY,
    conversation_id TEXT NOT NULL,
    primary_channel TEXT NOT NULL,
    reason TEXT NOT NULL,
    parked_at REAL NOT NULL,
    staged TEXT NOT NULL,
    outbox TEXT
);
CREATE INDEX parked_by_time ON parked (parked_at);
""",
)

# A limited number of expired rows, the oldest first.
_DELETE_EXPIRED = (
    """
DELETE FROM processed WHERE (conversation_id, primary_channel, message_sid) IN (
    SELECT conversation_id, primary_channel, message_sid FROM processed
    WHERE expires_at < ? ORDER BY expires_at LIMIT ?
)
""",
    """
DELETE FROM stage WHERE rowid IN (
    SELECT rowid FROM stage WHERE expires_at < ? ORDER BY expires_at LIMIT ?
)
""",
)
# deleted with each turn; more than a turn adds, so expired rows never pile up
_MAX_DELETES = 100


class SQLiteConversations(RowConversationStore):
    """Conversations in a SQLite file.

    With `durability="power"`, completed writes survive a power cut; with "process", a crash of
    this process. `busy_seconds` is how long to wait for other processes before
    StoreUnavailable. `clock` gives `updated_at` where the caller passes no time.

    Raises ConfigError if the path cannot be used.
    """

    def __init__(
        self,
        path: str | Path | Database,
        *,
        clock: Clock = SYSTEM_CLOCK,
        durability: Durability = "power",
        busy_seconds: float = 10.0,
    ) -> None:
        database = (
            path
            if isinstance(path, Database)
            else Database(Path(path), CONVERSATIONS, durability, busy_seconds)
        )
        super().__init__(database, clock)
        self._database: Database = database

    def __repr__(self) -> str:
        return f"SQLiteConversations({str(self._database.path)!r})"

    def _delete_expired(self, rows: Rows, now: float) -> None:
        assert isinstance(rows, RowConnection)
        for statement in _DELETE_EXPIRED:
            rows.execute(statement, (now, _MAX_DELETES))


class MemoryConversations(SQLiteConversations):
    """A conversation store in the memory of this process, for all of its threads.

    With `shared_with`, it is another view of that store's conversations.
    """

    def __init__(
        self, shared_with: SQLiteConversations | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        database = (
            MemoryDatabase(CONVERSATIONS) if shared_with is None else shared_with._database
        )
        super().__init__(database, clock=clock)
