"""Write the end of a turn in one transaction.

    conversations          recent messages, counts, thread, status;   if LOCK_HELD
                           outbox and lock removed
    conversation-messages  the customer's batch and the reply,        if new
                           numbered; one row for each sid
    conversations-stage    the batch is removed

The recent messages and the numbers follow from the row as it was acquired, because only the
holder of the lock writes them. A `list_append` would be enough for a list that grows forever,
but one expression cannot both append to a list and trim it.
"""

from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from holdfast.adapters.aws.dynamodb.chat import conditions, items, sanitize
from holdfast.adapters.aws.dynamodb.chat.history import HistoryRows
from holdfast.adapters.aws.dynamodb.chat.rows import (
    LOCK_ATTRIBUTES,
    MAX_TRIES,
    ConversationRows,
    bind_release,
    build_lock_lost_error,
    build_row_changing_error,
)
from holdfast.adapters.aws.dynamodb.chat.staging import StagingRows
from holdfast.adapters.aws.dynamodb.client import DynamoDBClient, WriteDone
from holdfast.conversations.errors import ParkedNotFound, PermanentError
from holdfast.conversations.model import (
    ConversationKey,
    HistoryMessage,
    LockGrant,
    Status,
    Turn,
)
from holdfast.conversations.recent_history import keep_recent_messages

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


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A finished turn, with the times and writes of its end.

    `unparked` holds the conditional writes that take the turn's batch out of the parked ones.
    """

    grant: LockGrant
    turn: Turn
    now: float
    remember_until: float
    unparked: tuple[dict[str, Any], ...] = ()
    write_id: str = field(default_factory=lambda: uuid4().hex)


class TurnWriter:
    """Writes finished turns."""

    def __init__(
        self,
        client: DynamoDBClient,
        rows: ConversationRows,
        history: HistoryRows,
        stage: StagingRows,
    ) -> None:
        self._client, self._rows, self._history, self._staging = client, rows, history, stage

    def finish(self, end: TurnEnd) -> None:
        """Write the turn and release the lock.

        Raises LockLost, ParkedNotFound, and PermanentError if the batch is too large.
        """
        grant = end.grant
        row, last_number = self._rows.read_held_row(grant), 0
        for _ in range(MAX_TRIES):
            result = self._client.transact(self._build_writes(end, row, last_number))
            if isinstance(result, WriteDone):
                return self._rows.forget(grant)
            if (failure := result.reasons[0]) is None:
                if any(result.reasons[1 : 1 + len(end.unparked)]):
                    raise ParkedNotFound("the batch is no longer parked under that id")
                # The numbers are taken, because the conversation's row was created anew.
                last_number = self._read_last_number(grant.key)
                continue
            row = failure.row
            if row.get("write_id") == end.write_id:
                # the write was done and only its response was lost
                return self._rows.forget(grant)
            if not items.is_held_by(row, grant):
                raise build_lock_lost_error(grant)
        raise build_row_changing_error()

    def _read_last_number(self, key: ConversationKey) -> int:
        return max(
            (message.seq for message in self._history.read_last(key, None, 1)), default=0
        )

    def _build_writes(
        self, end: TurnEnd, row: items.Row, last_number: int
    ) -> list[dict[str, Any]]:
        key, sids = end.grant.key, list(dict.fromkeys(end.turn.sids))
        counted = items.read_number(row, "message_count")
        known = _number_messages(items.read_recent_messages(row), max(counted, last_number))
        self._history.adopt_messages(
            key, (message for message in known if message.seq > counted)
        )
        count = max([counted, last_number, *(message.seq for message in known)])
        turn_messages = (
            replace(end.turn.user, seq=count + 1),
            replace(end.turn.assistant, seq=count + 2),
        )
        recent = _trim_to_size(keep_recent_messages(known, turn_messages), row)
        writes = [
            {"Update": self._build_update(end, row, recent, count + 2)},
            *end.unparked,
            *(
                put
                for message in turn_messages
                for put in self._history.build_puts(key, message)
            ),
            *self._history.build_processed_puts(key, sids, end.remember_until),
            *self._staging.build_deletes(key.conversation_id, sids),
        ]
        if len(writes) > MAX_WRITES:
            raise PermanentError(
                f"the batch is too large: its end takes {len(writes)} writes, "
                f"a transaction takes {MAX_WRITES}"
            )
        return writes

    def _build_update(
        self, end: TurnEnd, row: items.Row, recent: list[Any], new_count: int
    ) -> dict[str, Any]:
        turn = end.turn
        values = {
            ":recent": recent,
            ":new_count": new_count,
            ":at": end.now,
            ":thread": turn.thread_id,
            ":mark": turn.thread_mark,
            ":reply": turn.assistant.message_sid,
            ":write": end.write_id,
            # No ADD, because other software may have stored something else than a number there,
            # and ADD would then refuse the whole transaction.
            ":prompt": items.read_number(row, "prompt_tokens") + turn.prompt_tokens,
            ":completion": items.read_number(row, "completion_tokens") + turn.completion_tokens,
            **bind_release(end.grant, row, Status.REPLY_SENT),
        }
        update = self._rows.build_update(
            end.grant.key, _UPDATE, conditions.CAN_RELEASE_LOCK, values
        )
        return update | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


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
    max_bytes = min(_MAX_RECENT_BYTES, _MAX_ROW_BYTES - sanitize.estimate_size(others))
    rows = [items.row_from_message(message) for message in messages]
    while rows and sanitize.estimate_size(rows) > max_bytes:
        del rows[0]
    return rows
