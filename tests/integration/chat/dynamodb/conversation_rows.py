"""Helpers for the tests of DynamoDBConversations: rows, and turns with a recognisable text."""

from collections.abc import Mapping
from typing import Any

from contracts.conversations import support
from contracts.conversations.support import LATER, NOW, acquire_grant
from holdfast.chat.dynamodb import DynamoDBConversations
from holdfast.chat.dynamodb.tables import tables_from_prefix
from holdfast.chat.model import HistoryMessage, Turn
from holdfast.store.dynamodb.values import decode, encode

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


def make_turn(*sids: str, asked: str = CANARY, answer: str = "answer") -> Turn:
    """Return a turn that answers these sids with these texts."""
    user = HistoryMessage("user", asked, NOW, sids[0])
    assistant = HistoryMessage("assistant", answer, NOW + 1.0, f"reply to {sids[0]}")
    return support.make_turn(*sids, user=user, assistant=assistant, thread_mark="mark")


def answer_messages(store: DynamoDBConversations, *sids: str, **texts: str) -> None:
    """Answer these sids in one turn."""
    grant = acquire_grant(store, f"owner for {sids[0]}")
    store.finish(grant, make_turn(*sids, **texts), now=NOW, remember_until=LATER)
