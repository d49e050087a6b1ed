"""The end of a turn, in one transaction:

    conversations          tail, counts, thread, status; no outbox, no lock     if MINE
    conversation-messages  the customer's batch and the reply, numbered         if new
                           a row for each sid
    conversations-stage    the batch is gone

The tail and the numbers follow from the row as it was acquired: while the lock is held
nobody else writes them, and without it nothing is written. A `list_append` would do for one
list that grows for ever; one expression cannot append to a list and trim it.
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

MAX_WRITES = 100  # of one transaction
# Bytes. What the tail does not hold is in the history. The reply is out when it is written:
# so it is the tail that gives way, whatever else fills the row.
_MAX_TAIL_BYTES, _MAX_ROW_BYTES = 128 * 1024, 380 * 1024

_UPDATE = (
    "SET #messages = :tail, #message_count = :new_count, #conversation_status = :status, "
    "#updated_at = :at, #openai_thread_id = :thread, #thread_mark = :mark, "
    "#last_assistant_message_sid = :reply, #write_id = :write, "
    "#prompt_tokens = :prompt, #completion_tokens = :completion "
    f"REMOVE #outbox, {LOCK_ATTRIBUTES}"
)


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A turn, and what is asked of its end. `unparked`: the writes that take it out of
    what is parked, under conditions."""

    grant: LockGrant
    turn: Turn
    now: float
    remember_until: float
    unparked: tuple[dict[str, Any], ...] = ()
    write_id: str = field(default_factory=lambda: uuid4().hex)


class TurnWriter:
    def __init__(
        self,
        client: DynamoDBClient,
        rows: ConversationRows,
        history: HistoryRows,
        stage: StagingRows,
    ) -> None:
        self._client, self._rows, self._history, self._staging = client, rows, history, stage

    def finish(self, end: TurnEnd) -> None:
        grant = end.grant
        row, numbered = self._rows.read_held_row(grant), 0
        for _ in range(MAX_TRIES):
            answer = self._client.transact(self._build_writes(end, row, numbered))
            if isinstance(answer, WriteDone):
                return self._rows.forget(grant)
            if (refused := answer.reasons[0]) is None:
                if any(answer.reasons[1 : 1 + len(end.unparked)]):
                    raise ParkedNotFound("nothing is parked under that id any more")
                # Numbers that are taken: somebody made the conversation's row anew.
                numbered = self._read_last_number(grant.key)
                continue
            row = refused.row
            if row.get("write_id") == end.write_id:
                return self._rows.forget(grant)  # done; it was the answer that was lost
            if not items.is_held_by(row, grant):
                raise build_lock_lost_error(grant)
        raise build_row_changing_error()

    def _read_last_number(self, key: ConversationKey) -> int:
        return max((one.seq for one in self._history.read_last(key, None, 1)), default=0)

    def _build_writes(
        self, end: TurnEnd, row: items.Row, numbered: int
    ) -> list[dict[str, Any]]:
        key, sids = end.grant.key, list(dict.fromkeys(end.turn.sids))
        counted = items.read_number(row, "message_count")
        known = _number_messages(items.read_recent_messages(row), max(counted, numbered))
        self._history.adopt_messages(key, (one for one in known if one.seq > counted))
        count = max([counted, numbered, *(one.seq for one in known)])
        pair = (
            replace(end.turn.user, seq=count + 1),
            replace(end.turn.assistant, seq=count + 2),
        )
        tail = _trim_to_size(keep_recent_messages(known, pair), row)
        writes = [
            {"Update": self._build_update(end, row, tail, count + 2)},
            *end.unparked,
            *(put for message in pair for put in self._history.build_puts(key, message)),
            *self._history.build_processed_puts(key, sids, end.remember_until),
            *self._staging.build_deletes(key.conversation_id, sids),
        ]
        if len(writes) > MAX_WRITES:
            raise PermanentError("the batch is too large for one write")
        return writes

    def _build_update(
        self, end: TurnEnd, row: items.Row, tail: list[Any], new_count: int
    ) -> dict[str, Any]:
        turn = end.turn
        values = {
            ":tail": tail,
            ":new_count": new_count,
            ":at": end.now,
            ":thread": turn.thread_id,
            ":mark": turn.thread_mark,
            ":reply": turn.assistant.message_sid,
            ":write": end.write_id,
            # No ADD: what somebody else wrote there may be no number, and would refuse all.
            ":prompt": items.read_number(row, "prompt_tokens") + turn.prompt_tokens,
            ":completion": items.read_number(row, "completion_tokens") + turn.completion_tokens,
            **bind_release(end.grant, row, Status.REPLY_SENT),
        }
        update = self._rows.build_update(
            end.grant.key, _UPDATE, conditions.CAN_RELEASE_LOCK, values
        )
        return update | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


def _number_messages(messages: tuple[HistoryMessage, ...], last: int) -> list[HistoryMessage]:
    """With numbers for those that have none: the seed's Lambda writes them like this."""
    numbered = []
    for message in messages:
        if not message.seq:
            last += 1
            message = replace(message, seq=last)
        numbered.append(message)
    return numbered


def _trim_to_size(messages: tuple[HistoryMessage, ...], row: items.Row) -> list[dict[str, Any]]:
    """As rows; without the first ones where they are too many bytes."""
    others = {name: row[name] for name in row if name not in ("messages", "outbox")}
    room = min(_MAX_TAIL_BYTES, _MAX_ROW_BYTES - sanitize.estimate_size(others))
    tail = [items.row_from_message(message) for message in messages]
    while tail and sanitize.estimate_size(tail) > room:
        del tail[0]
    return tail
