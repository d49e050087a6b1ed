"""DynamoDBConversations: the conversation store on Amazon DynamoDB.

    acquire               one UpdateItem, which also returns the row
    finish, park, unpark  TransactWriteItems
    staged, processed     consistent Query and BatchGetItem, all pages
    all other methods     one call with a named condition

A batch without faults costs nine calls: acquire, staged, close_window, processed, three notes,
finish, staged. The end of a turn is one transaction:

    conversations          recent messages, counts, thread, status;   if LOCK_HELD
                           outbox and lock removed
    conversation-messages  the customer's batch and the reply,        if new
                           numbered; one row for each sid
    conversations-stage    the batch is removed

The recent messages and the numbers follow from the row as it was acquired, because only the
holder of the lock writes them. A `list_append` would be enough for a list that grows forever,
but one expression cannot both append to a list and trim it.
"""

from dataclasses import replace
from typing import Any

from holdfast.chat import store_rules as rules
from holdfast.chat.dynamodb import conditions, items
from holdfast.chat.dynamodb.messages import Write
from holdfast.chat.dynamodb.parked_rows import ParkingStore
from holdfast.chat.dynamodb.rows import (
    LOCK_ATTRIBUTES,
    MAX_TRIES,
    LockRelease,
    build_row_changing_error,
)
from holdfast.chat.errors import ParkedNotFound, PermanentError
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    HistoryMessage,
    LockGrant,
    Status,
    Turn,
)
from holdfast.chat.rows import row_from_message
from holdfast.store.dynamodb.client import WriteDone
from holdfast.store.dynamodb.expressions import RETURN_OLD

MAX_WRITES = 100  # DynamoDB's limit for one transaction
# Bytes. Messages that do not fit into the row remain in the history. The reply has been sent
# when the turn is written, so older recent messages are dropped, whatever else fills the row.
_MAX_RECENT_BYTES, _MAX_ROW_BYTES = 128 * 1024, 380 * 1024

_UPDATE = (
    "SET #messages = :recent, #message_count = :new_count, #conversation_status = :status, "
    "#updated_at = :at, #openai_thread_id = :thread, #thread_mark = :mark, "
    "#last_assistant_message_sid = :reply, #write_id = :write, "
    "#prompt_tokens = :prompt, #completion_tokens = :completion "
    f"REMOVE #outbox, {LOCK_ATTRIBUTES}"
)


class DynamoDBConversations(ParkingStore):
    """Conversations in five DynamoDB tables, which `create_tables` creates.

    Methods that store a value raise PermanentError if DynamoDB can never hold it.
    """

    def finish(
        self,
        grant: LockGrant,
        turn: Turn,
        *,
        now: float,
        remember_until: float,
        parked_id: str | None = None,
    ) -> None:
        """Write the turn and release the lock in one transaction.

        Raises LockLost, ParkedNotFound, and PermanentError if the batch is too large.
        """
        unparked = [] if parked_id is None else self._build_unpark_writes(grant.key, parked_id)
        key = grant.key
        processed_writes = self._build_processed_writes(key, turn.sids, remember_until)
        release, last_number = LockRelease(grant, self._read_held_row(grant)), 0
        for _ in range(MAX_TRIES):
            update, *puts = self._build_turn_writes(release, turn, now, last_number)
            writes = [update, *unparked, *puts, *processed_writes]
            if len(writes) > MAX_WRITES:
                raise PermanentError(
                    f"the batch is too large: its end takes {len(writes)} writes, "
                    f"a transaction takes {MAX_WRITES}"
                )
            result = self._client.transact(writes)
            if isinstance(result, WriteDone):
                return self._forget(grant)
            if (failure := result.reasons[0]) is not None:
                if release.is_done(failure.row):
                    return self._forget(grant)
            elif any(result.reasons[1 : 1 + len(unparked)]):
                raise ParkedNotFound("the batch is no longer parked under that id")
            else:
                # The numbers are taken, because the conversation's row was created anew.
                last_number = self._read_last_number(key)
        raise build_row_changing_error()

    def _read_last_number(self, key: ConversationKey) -> int:
        messages = self._read_last_messages(key, None, 1)
        return max((message.seq for message in messages), default=0)

    def _build_turn_writes(
        self, release: LockRelease, turn: Turn, now: float, last_number: int
    ) -> list[Write]:
        """Return the update of the conversation's row, and the puts of the turn's messages."""
        key, row = release.grant.key, release.row
        counted = items.read_number(row, "message_count")
        known = _number_messages(items.read_recent_messages(row), max(counted, last_number))
        self._adopt_messages(key, (message for message in known if message.seq > counted))
        count = max([counted, last_number, *(message.seq for message in known)])
        before = replace(
            items.conversation_from_row(row), messages=tuple(known), message_count=count
        )
        after, pair = rules.finish_turn(before, turn, now)
        puts = [put for message in pair for put in self._build_message_puts(key, message)]
        return [self._build_turn_update(release, after), *puts]

    def _build_turn_update(self, release: LockRelease, after: Conversation) -> Write:
        values = {
            ":recent": _trim_to_size(after.messages, release.row),
            ":new_count": after.message_count,
            ":at": after.updated_at,
            ":thread": after.thread_id,
            ":mark": after.thread_mark,
            ":reply": after.last_assistant_message_sid,
            # No ADD, because other software may have stored something else than a number there,
            # and ADD would then refuse the whole transaction.
            ":prompt": after.prompt_tokens,
            ":completion": after.completion_tokens,
            **release.bind(Status.REPLY_SENT),
        }
        update = self._build_update(
            release.grant.key, _UPDATE, conditions.CAN_RELEASE_LOCK, values
        )
        return {"Update": update | RETURN_OLD}


def _number_messages(messages: tuple[HistoryMessage, ...], last: int) -> list[HistoryMessage]:
    """Number the messages that have no number, because the seed's Lambda writes none."""
    numbered = []
    for message in messages:
        if not message.seq:
            last += 1
            message = replace(message, seq=last)
        numbered.append(message)
    return numbered


def _trim_to_size(messages: tuple[HistoryMessage, ...], row: items.Row) -> list[dict[str, Any]]:
    """Return the messages as rows, without the oldest ones if they are too many bytes."""
    others = {name: row[name] for name in row if name not in ("messages", "outbox")}
    max_bytes = min(_MAX_RECENT_BYTES, _MAX_ROW_BYTES - items.estimate_size(others))
    rows = [row_from_message(message) for message in messages]
    while rows and items.estimate_size(rows) > max_bytes:
        del rows[0]
    return rows
