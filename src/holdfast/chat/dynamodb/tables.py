"""Names, definitions and creation of the five conversation tables.

    conversations               primary_channel, conversation_id
    conversations-stage         conversation_id, message_sid   expires_at
    conversations-trigger-lock  conversation_id                expires_at
    conversation-messages       conversation, entry            expires_at
    conversations-parked        conversation_id, parked_id

The first three are the seed's. `expires_at` is in whole epoch seconds, as DynamoDB requires.
DynamoDB deletes expired rows up to days later, so no code here relies on a row being gone.
History rows have no `expires_at` and are kept.
"""

from typing import Any, NamedTuple

from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.dynamodb.tables import define_table, ensure_tables

EXPIRES_BY = "expires_at"


class ConversationTables(NamedTuple):
    """The names of the five tables."""

    conversations: str
    stage: str
    windows: str
    messages: str
    parked: str

    @property
    def expiring(self) -> dict[str, str]:
        """Return the tables whose rows expire, with the attribute that holds the time."""
        return dict.fromkeys((self.stage, self.windows, self.messages), EXPIRES_BY)


def tables_from_prefix(prefix: str = "") -> ConversationTables:
    """Return the table names with this prefix."""
    return ConversationTables(
        f"{prefix}conversations",
        f"{prefix}conversations-stage",
        f"{prefix}conversations-trigger-lock",
        f"{prefix}conversation-messages",
        f"{prefix}conversations-parked",
    )


def format_tables_command(prefix: str) -> str:
    """Return the shell command that shows these tables."""
    return f"HOLDFAST_CHAT_STORE=dynamodb:{prefix} holdfast chat tables"


def define_tables(tables: ConversationTables) -> list[dict[str, Any]]:
    """Return the arguments of CreateTable for each table, with on-demand billing."""
    return [
        define_table(tables.conversations, "primary_channel", "conversation_id"),
        define_table(tables.stage, "conversation_id", "message_sid"),
        define_table(tables.windows, "conversation_id"),
        define_table(tables.messages, "conversation", "entry"),
        define_table(tables.parked, "conversation_id", "parked_id"),
    ]


def create_tables(client: Any, prefix: str = "", *, clock: Clock = SYSTEM_CLOCK) -> list[str]:
    """Create the missing tables, wait until they are active, and let rows expire.

    Returns the names of the tables created now. Existing tables stay as they are. Raises
    ConfigError or StoreUnavailable.
    """
    tables = tables_from_prefix(prefix)
    command = format_tables_command(prefix)
    return ensure_tables(client, define_tables(tables), tables.expiring, clock, command)
