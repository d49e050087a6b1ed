"""The five tables, and how to make them.

    conversations               primary_channel, conversation_id
    conversations-stage         conversation_id, message_sid   expires_at
    conversations-trigger-lock  conversation_id                expires_at
    conversation-messages       conversation, entry            expires_at
    conversations-parked        conversation_id, parked_id

The first three are the seed's. `expires_at` is in whole seconds since the epoch, as
DynamoDB wants it; it forgets rows days later, so nothing here trusts that a row is gone.
Rows of the history have no `expires_at`: they stay.
"""

from typing import Any, NamedTuple

from holdfast.adapters.aws.dynamodb.tables import (
    define_key,
    define_text_attributes,
    ensure_tables,
)
from holdfast.core.clock import SYSTEM_CLOCK, Clock

EXPIRES_BY = "expires_at"


class ConversationTables(NamedTuple):
    conversations: str
    stage: str
    windows: str
    messages: str
    parked: str

    @property
    def expiring(self) -> dict[str, str]:
        return dict.fromkeys((self.stage, self.windows, self.messages), EXPIRES_BY)


def tables_from_prefix(prefix: str = "") -> ConversationTables:
    return ConversationTables(
        f"{prefix}conversations",
        f"{prefix}conversations-stage",
        f"{prefix}conversations-trigger-lock",
        f"{prefix}conversation-messages",
        f"{prefix}conversations-parked",
    )


def format_tables_command(prefix: str) -> str:
    """Return the command that shows these tables, as it can be pasted."""
    return f"HOLDFAST_CHAT_STORE=dynamodb:{prefix} holdfast chat tables"


def define_tables(tables: ConversationTables) -> list[dict[str, Any]]:
    """As CreateTable takes them, paid by use."""
    return [
        _define_table(tables.conversations, "primary_channel", "conversation_id"),
        _define_table(tables.stage, "conversation_id", "message_sid"),
        _define_table(tables.windows, "conversation_id"),
        _define_table(tables.messages, "conversation", "entry"),
        _define_table(tables.parked, "conversation_id", "parked_id"),
    ]


def _define_table(name: str, *keys: str) -> dict[str, Any]:
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": define_text_attributes(*keys),
        "KeySchema": define_key(*keys),
    }


def create_tables(client: Any, prefix: str = "", *, clock: Clock = SYSTEM_CLOCK) -> list[str]:
    """Make the tables that are not there, wait until they can be used, and have rows
    expire; the names of those made now. Those that are there stay as they are.

    Raises ConfigError, StoreUnavailable.
    """
    tables = tables_from_prefix(prefix)
    command = format_tables_command(prefix)
    return ensure_tables(client, define_tables(tables), tables.expiring, clock, command)
