"""The SQL statements of the conversation store."""

# -- conversations

INSERT = """
INSERT INTO conversations (
    conversation_id, primary_channel, channel_config, ai_config, status, created_at, updated_at
) VALUES (
    :conversation_id, :primary_channel, :channel_config, :ai_config, :status, :created_at,
    :updated_at
) ON CONFLICT DO NOTHING
"""
BY_KEY = "SELECT * FROM conversations WHERE conversation_id = ? AND primary_channel = ?"
BY_NUMBER = "SELECT * FROM conversations WHERE conversation_no = ?"
LATEST = "SELECT conversation_no FROM conversations ORDER BY updated_at DESC"
OF_ID = """
SELECT conversation_no FROM conversations WHERE conversation_id = ? ORDER BY updated_at DESC
"""
# This grant holds the lock. The condition is in SQL, so that the most frequent writes of a turn
# need not read the conversation with its recent messages first.
_LOCK_HELD = """
conversation_id = :conversation_id AND primary_channel = :primary_channel
    AND status = :processing AND lock_owner = :owner AND lock_fence = :fence
"""
NOTE = f"""
UPDATE conversations SET outbox = :outbox, thread_id = :thread_id, updated_at = :now
WHERE {_LOCK_HELD}
"""  # noqa: S608 - our own words
RENEW = f"""
UPDATE conversations SET lock_expires_at = :expires_at
WHERE {_LOCK_HELD} AND lock_expires_at > :now
"""  # noqa: S608 - our own words

# -- staged messages and windows

STAGE = """
INSERT INTO stage VALUES (
    :conversation_id, :message_sid, :primary_channel, :body, :received_at, :staged_at, :media,
    :unreadable, :expires_at
) ON CONFLICT DO NOTHING
"""
STAGED = "SELECT * FROM stage WHERE conversation_id = ?"
DROP_STAGED = "DELETE FROM stage WHERE conversation_id = ? AND message_sid = ?"
# A row of other software may have a text as its time. It counts as an old row.
WAITING = """
SELECT primary_channel, conversation_id, count(*) AS messages,
    min(CAST(staged_at AS REAL)) AS oldest_at FROM stage
GROUP BY conversation_id, primary_channel
"""
WINDOW = "SELECT * FROM windows WHERE conversation_id = ?"
OPEN_WINDOW = "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?, ?)"
MARK_TRIGGERED = "UPDATE windows SET triggered = 1 WHERE conversation_id = ? AND trigger_id = ?"
CLOSE_WINDOW = "DELETE FROM windows WHERE conversation_id = ? AND trigger_id = ?"

# -- the history, processed messages and parked batches

INSERT_MESSAGE = """
INSERT INTO messages VALUES (
    :conversation_no, :seq, :role, :body, :at, :message_sid, :details
)
"""
MESSAGES_BEFORE = """
SELECT * FROM messages WHERE conversation_no = ? AND seq < ? ORDER BY seq DESC LIMIT ?
"""
IS_PROCESSED = """
SELECT 1 FROM processed
WHERE conversation_id = ? AND primary_channel = ? AND message_sid = ?
"""
MARK_PROCESSED = "INSERT OR REPLACE INTO processed VALUES (?, ?, ?, ?)"
UNMARK_PROCESSED = """
DELETE FROM processed
WHERE conversation_id = ? AND primary_channel = ? AND message_sid = ?
"""
INSERT_PARKED = """
INSERT INTO parked VALUES (
    :parked_id, :conversation_id, :primary_channel, :reason, :parked_at, :staged, :outbox
) ON CONFLICT DO NOTHING
"""
PARKED_IDS = "SELECT parked_id FROM parked ORDER BY parked_at"
PARKED = "SELECT * FROM parked WHERE parked_id = ?"
DELETE_PARKED = "DELETE FROM parked WHERE parked_id = ?"
# A limited number of expired rows, the oldest first.
DELETE_EXPIRED_PROCESSED = """
DELETE FROM processed WHERE (conversation_id, primary_channel, message_sid) IN (
    SELECT conversation_id, primary_channel, message_sid FROM processed
    WHERE expires_at < ? ORDER BY expires_at LIMIT ?
)
"""
DELETE_EXPIRED_STAGED = """
DELETE FROM stage WHERE rowid IN (
    SELECT rowid FROM stage WHERE expires_at < ? ORDER BY expires_at LIMIT ?
)
"""
