"""DynamoDBConversations: the conversation store on Amazon DynamoDB.

    acquire               one UpdateItem, which also returns the row
    finish, park, unpark  TransactWriteItems
    staged, processed     consistent Query and BatchGetItem, all pages
    all other methods     one call with a named condition

A batch without faults costs nine calls: acquire, staged, close_window, processed, three notes,
finish, staged.
"""

from collections.abc import Collection, Iterator
from typing import Any

from holdfast.adapters.aws.dynamodb.chat import items
from holdfast.adapters.aws.dynamodb.chat.history import HistoryRows
from holdfast.adapters.aws.dynamodb.chat.parked_rows import ParkedRows
from holdfast.adapters.aws.dynamodb.chat.rows import ConversationRows
from holdfast.adapters.aws.dynamodb.chat.staging import StagingRows
from holdfast.adapters.aws.dynamodb.chat.tables import format_tables_command, tables_from_prefix
from holdfast.adapters.aws.dynamodb.chat.turns import TurnEnd, TurnWriter
from holdfast.adapters.aws.dynamodb.client import DynamoDBClient
from holdfast.conversations.model import (
    Conversation,
    ConversationKey,
    ConversationNotFound,
    Fragment,
    HistoryMessage,
    LockAcquired,
    LockGrant,
    LockHeld,
    ParkedBatch,
    Staged,
    Turn,
    WaitingConversation,
    Window,
)
from holdfast.conversations.outbox import Outbox
from holdfast.conversations.ports import ConversationStore
from holdfast.core.clock import SYSTEM_CLOCK, Clock


class DynamoDBConversations(ConversationStore):
    """Conversations in five DynamoDB tables, which `create_tables` creates.

    Methods that store a value raise PermanentError if DynamoDB can never hold it.
    """

    def __init__(
        self, prefix: str = "", *, client: Any = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        tables = tables_from_prefix(prefix)
        self._client = DynamoDBClient(
            client, clock, tables_command=format_tables_command(prefix)
        )
        self._staging = StagingRows(self._client, tables)
        self._rows = ConversationRows(self._client, tables, clock)
        self._history = HistoryRows(self._client, tables)
        self._turn_writer = TurnWriter(self._client, self._rows, self._history, self._staging)
        self._parked_rows = ParkedRows(
            self._client, tables, self._rows, self._history, self._staging
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # -- staging

    def create(self, conversation: Conversation) -> bool:
        """Store a new conversation. Return False if it exists already."""
        return self._rows.create(conversation)

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Stage a fragment. Return False if it is staged already."""
        return self._staging.put_fragment(fragment, expires_at)

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        """Open the window. Return False if another window is open."""
        return self._staging.open_window(window, now, untriggered_before)

    def mark_triggered(self, window: Window) -> None:
        """Note that the window's trigger is in the queue."""
        self._staging.mark_triggered(window)

    def window(self, conversation_id: str) -> Window | None:
        """Return the conversation's window, expired or not."""
        return self._staging.read_window(conversation_id)

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Close the window if it belongs to this trigger."""
        self._staging.close_window(conversation_id, trigger_id)

    # -- the lock

    def acquire(
        self,
        key: ConversationKey,
        *,
        owner: str,
        trigger_id: str,
        now: float,
        expires_at: float,
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        """Take the lock if it is free or expired."""
        return self._rows.acquire(key, owner, trigger_id, now, expires_at)

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        """Extend the lock. Return False if it is lost."""
        return self._rows.renew(grant, now, expires_at)

    def release(self, grant: LockGrant, status: str | None) -> None:
        """Release the lock without a reply. Raises LockLost."""
        self._rows.release(grant, status)

    # -- the batch

    def staged(self, conversation_id: str) -> list[Staged]:
        """Return every staged row of the conversation."""
        return self._staging.read_all(conversation_id)

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Return those of the sids that were answered or parked already."""
        return self._history.read_processed(key, sids)

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Write down how far the reply has come. Raises LockLost."""
        self._rows.note(grant, outbox, thread_id)

    def finish(
        self,
        grant: LockGrant,
        turn: Turn,
        *,
        now: float,
        remember_until: float,
        parked_id: str | None = None,
    ) -> None:
        """Write the turn and release the lock in one transaction. Raises LockLost."""
        unparked = (
            ()
            if parked_id is None
            else self._parked_rows.build_unpark_writes(grant.key, parked_id)
        )
        self._turn_writer.finish(TurnEnd(grant, turn, now, remember_until, unparked))

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        """Delete the staged rows of these sids."""
        self._staging.drop(conversation_id, sids)

    # -- for operators

    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        """Park the batch in slices, and release the lock if a grant is given."""
        self._parked_rows.park(grant, parked, remember_until)
        if grant is not None:
            self._rows.forget(grant)

    def parked(self) -> Iterator[ParkedBatch]:
        """Yield all parked batches, the oldest first, from a table scan."""
        return iter(self._parked_rows.read_all())

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Take a parked batch out and return it. Raises ParkedNotFound."""
        return self._parked_rows.unpark(parked_id, back_to_stage, now, expires_at)

    def get(self, key: ConversationKey) -> Conversation | None:
        """Return the conversation, or None if there is none."""
        row = self._rows.read(key)
        return items.conversation_from_row(row) if row else None

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        """Yield all conversations, or those with this id, from a table scan."""
        return map(items.conversation_from_row, self._rows.read_all(conversation_id))

    def set_status(self, key: ConversationKey, status: str) -> bool:
        """Set the status that an operator chose. Return False if there is no such
        conversation.
        """
        return self._rows.set_status(key, status)

    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        """Return up to `limit` history messages in order."""
        messages = self._history.read_last(key, before, limit)
        if messages or before is not None or limit < 1:
            return messages
        # The seed's Lambda keeps the messages in the row. The first turn that Holdfast finishes
        # moves them.
        return list(items.read_recent_messages(self._rows.read(key))[-limit:])

    # -- for the sweeper

    def waiting(self) -> Iterator[WaitingConversation]:
        """Yield the conversations that have staged rows, from a table scan."""
        return self._staging.read_waiting()
