"""What the tests of DynamoDBConversations share: tables on moto, and turns of a chat."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dynamodb_kit import service
from moto.dynamodb.models import dynamodb_backends

from holdfast.adapters.aws.dynamodb.chat import DynamoDBConversations
from holdfast.adapters.aws.dynamodb.chat.tables import definitions, tables_of
from holdfast.adapters.aws.dynamodb.values import decode, encode
from holdfast.conversations.model import (
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
    parked_id_of,
)

NOW = 1_800_000_000.0
LATER = NOW + 30 * 86_400.0
KEY = ConversationKey("whatsapp:+4915700000001", "chat")
CANARY = "canary-of-a-body"
TABLES = tables_of()


@contextmanager
def chat_service() -> Iterator[Any]:
    """moto, in this process, with the five tables."""
    with service() as client:
        for definition in definitions(TABLES):
            client.create_table(**definition)
        yield client


def emptied(client: Any) -> Any:
    """The service with nothing in its tables. To make them anew costs ten calls, and moto
    is slow."""
    [regions] = dynamodb_backends.values()
    for table in regions[client.meta.region_name].tables.values():
        table.items.clear()
    return client


def put(client: Any, table: str, row: Mapping[str, Any]) -> None:
    """A row of somebody else's."""
    client.put_item(TableName=table, Item=encode(row))


def rows(client: Any, table: str) -> list[dict[str, Any]]:
    return [decode(row) for row in client.scan(TableName=table)["Items"]]


def conversation_row(client: Any) -> dict[str, Any]:
    [row] = rows(client, TABLES.conversations)
    return row


# -- a chat


def begun(store: DynamoDBConversations, **fields: Any) -> None:
    assert store.create(Conversation(KEY, created_at=NOW, updated_at=NOW, **fields))


def fragment(sid: str, body: str = CANARY, **fields: Any) -> Fragment:
    return replace(Fragment(KEY, sid, body, NOW - 1.0, NOW), **fields)


def stage(store: DynamoDBConversations, *sids: str, body: str = CANARY) -> list[Fragment]:
    made = [fragment(sid, body) for sid in sids]
    for one in made:
        assert store.stage(one, expires_at=LATER)
    return made


def staged(store: DynamoDBConversations) -> list[str]:
    return sorted(one.message_sid for one in store.staged(KEY.conversation_id))


def acquired(
    store: DynamoDBConversations, owner: str = "owner", now: float = NOW
) -> LockAcquired:
    said = store.acquire(KEY, owner=owner, trigger_id="t", now=now, expires_at=now + 60.0)
    assert isinstance(said, LockAcquired), said
    return said


def granted(store: DynamoDBConversations, owner: str = "owner", now: float = NOW) -> LockGrant:
    return acquired(store, owner, now).grant


def turn(*sids: str, asked: str = CANARY, answer: str = "answer") -> Turn:
    user = HistoryMessage("user", asked, NOW, sids[0])
    assistant = HistoryMessage("assistant", answer, NOW + 1.0, f"reply to {sids[0]}")
    return Turn(sids, user, assistant, "thread", "mark", 10, 3)


def answered(store: DynamoDBConversations, *sids: str, **texts: str) -> None:
    grant = granted(store, f"who answers {sids[0]}")
    store.finish(grant, turn(*sids, **texts), now=NOW, remember_until=LATER)


def parked(*staged: Staged) -> ParkedBatch:
    ids = parked_id_of(KEY, (one.message_sid for one in staged))
    return ParkedBatch(ids, KEY, "no retry helps", NOW, staged)


def window(trigger_id: str = "w", sid: str = "m1", **fields: Any) -> Window:
    return replace(Window(KEY.conversation_id, trigger_id, sid, NOW, NOW + 100.5), **fields)
