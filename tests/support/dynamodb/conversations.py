"""Helpers for the tests of DynamoDBConversations: rows, and turns of a chat."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.chat.dynamodb import DynamoDBConversations
from holdfast.chat.dynamodb.tables import tables_from_prefix
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    ParkedBatch,
    Staged,
    Turn,
    Window,
    make_parked_id,
)
from holdfast.store.dynamodb.values import decode, encode

NOW = 1_800_000_000.0
LATER = NOW + 30 * 86_400.0
KEY = ConversationKey("whatsapp:+4915700000001", "chat")
CANARY = "canary-of-a-body"
TABLES = tables_from_prefix()


def put_row(client: Any, table: str, row: Mapping[str, Any]) -> None:
    """Write a row as other software would."""
    client.put_item(TableName=table, Item=encode(row))


def read_rows(client: Any, table: str) -> list[dict[str, Any]]:
    """Return all rows of a table."""
    return [decode(row) for row in client.scan(TableName=table)["Items"]]


def read_conversation_row(client: Any) -> dict[str, Any]:
    """Return the row of the only conversation."""
    [row] = read_rows(client, TABLES.conversations)
    return row


# -- a chat


def create_conversation(store: DynamoDBConversations, **fields: Any) -> None:
    """Store a new conversation."""
    assert store.create(Conversation(KEY, created_at=NOW, updated_at=NOW, **fields))


def make_fragment(sid: str, body: str = CANARY, **fields: Any) -> Fragment:
    """Return a fragment with this sid."""
    return replace(Fragment(KEY, sid, body, NOW - 1.0, NOW), **fields)


def stage_messages(
    store: DynamoDBConversations, *sids: str, body: str = CANARY
) -> list[Fragment]:
    """Stage messages with these sids and return them."""
    fragments = [make_fragment(sid, body) for sid in sids]
    for fragment in fragments:
        assert store.stage(fragment, expires_at=LATER)
    return fragments


def list_staged_sids(store: DynamoDBConversations) -> list[str]:
    """Return the sids of all staged messages."""
    return sorted(staged.message_sid for staged in store.staged(KEY.conversation_id))


def acquire_lock(
    store: DynamoDBConversations, owner: str = "owner", now: float = NOW
) -> LockAcquired:
    """Take the conversation's lock."""
    outcome = store.acquire(KEY, owner=owner, trigger_id="t", now=now, expires_at=now + 60.0)
    assert isinstance(outcome, LockAcquired), outcome
    return outcome


def acquire_grant(
    store: DynamoDBConversations, owner: str = "owner", now: float = NOW
) -> LockGrant:
    """Take the conversation's lock and return its grant."""
    return acquire_lock(store, owner, now).grant


def make_turn(*sids: str, asked: str = CANARY, answer: str = "answer") -> Turn:
    """Return a turn that answers these sids."""
    user = HistoryMessage("user", asked, NOW, sids[0])
    assistant = HistoryMessage("assistant", answer, NOW + 1.0, f"reply to {sids[0]}")
    return Turn(sids, user, assistant, "thread", "mark", 10, 3)


def answer_messages(store: DynamoDBConversations, *sids: str, **texts: str) -> None:
    """Answer these sids in one turn."""
    grant = acquire_grant(store, f"owner for {sids[0]}")
    store.finish(grant, make_turn(*sids, **texts), now=NOW, remember_until=LATER)


def make_parked(*messages: Staged) -> ParkedBatch:
    """Return a parked batch of these messages."""
    parked_id = make_parked_id(KEY, (message.message_sid for message in messages))
    return ParkedBatch(parked_id, KEY, "no retry helps", NOW, messages)


def make_window(trigger_id: str = "w", sid: str = "m1", **fields: Any) -> Window:
    """Return a window."""
    return replace(Window(KEY.conversation_id, trigger_id, sid, NOW, NOW + 100.5), **fields)
