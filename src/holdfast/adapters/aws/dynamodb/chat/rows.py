"""The conversations' rows: making, reading, locking.

A lock is taken in one call, which also returns the row. Only when an expired lock is found
a second one follows: it must not take `processing_reply` for the status before, and a
condition cannot choose between two updates.
"""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from holdfast.adapters.aws.dynamodb.chat import conditions, items, sanitize
from holdfast.adapters.aws.dynamodb.chat.keys import build_conversation_key, is_valid_key
from holdfast.adapters.aws.dynamodb.chat.staging import put_if_new
from holdfast.adapters.aws.dynamodb.chat.tables import ConversationTables
from holdfast.adapters.aws.dynamodb.client import ConditionFailed, DynamoDBClient, WriteDone
from holdfast.adapters.aws.dynamodb.values import decode
from holdfast.conversations import store_rules as rules
from holdfast.conversations.errors import LockLost, PermanentError
from holdfast.conversations.lock import release_on_error
from holdfast.conversations.model import (
    Conversation,
    ConversationKey,
    ConversationNotFound,
    LockAcquired,
    LockGrant,
    LockHeld,
    Status,
    redact_id,
)
from holdfast.conversations.outbox import Outbox, to_plain_data
from holdfast.core.clock import Clock
from holdfast.core.errors import StoreUnavailable

MAX_TRIES = 5  # others may change the row between our look and our write, but not for ever
_MAX_REMEMBERED_GRANTS = 64  # grants of one process at once; others cost a read
# What is left for `finish` to add: numbers, a thread, a tail that takes the outbox's place.
_MAX_BYTES_WITH_OUTBOX = 380 * 1024

_SET_LOCK = (
    "#lock_owner = :owner, #lock_trigger = :trigger, #lock_expires_at = :expires, "
    "#updated_at = :now"
)
_TAKE_LOCK = (
    "SET #previous_status = if_not_exists(#conversation_status, :none), "
    f"#conversation_status = :processing, #lock_write = :write, {_SET_LOCK} ADD #lock_fence :one"
)
_TAKE_OVER_LOCK = (
    "SET #previous_status = if_not_exists(#previous_status, :none), "
    f"#lock_write = :write, {_SET_LOCK} ADD #lock_fence :one"
)
LOCK_ATTRIBUTES = "#lock_owner, #lock_trigger, #lock_expires_at, #lock_write, #previous_status"


class ConversationRows:
    def __init__(
        self, client: DynamoDBClient, tables: ConversationTables, clock: Clock
    ) -> None:
        self._client, self._table, self._clock = client, tables.conversations, clock
        self._held: dict[LockGrant, items.Row] = {}  # as acquired

    # -- reading and making

    def read(self, key: ConversationKey) -> items.Row:
        """Empty when there is none."""
        if not is_valid_key(key):
            return {}
        answer = self._client.call(
            "get_item",
            TableName=self._table,
            Key=build_conversation_key(key),
            ConsistentRead=True,
        )
        return decode(answer.get("Item"))

    def read_all(self, conversation_id: str | None) -> Iterator[items.Row]:
        """There is no index by id: a person who asks for one waits for the whole table."""
        only = "#conversation_id = :id"
        narrowed: dict[str, Any] = {}
        if conversation_id is not None:
            narrowed = conditions.bind_values({":id": conversation_id}, only) | {
                "FilterExpression": only
            }
        return self._client.read_pages("scan", TableName=self._table, **narrowed)

    def create(self, conversation: Conversation) -> bool:
        row = items.row_from_conversation(conversation)
        return put_if_new(
            self._client, self._table, row, conditions.NEW_CONVERSATION, "the conversation"
        )

    # -- the lock

    def acquire(
        self, key: ConversationKey, owner: str, trigger_id: str, now: float, expires_at: float
    ) -> LockAcquired | LockHeld | ConversationNotFound:
        if not is_valid_key(key):
            return ConversationNotFound()
        values = {":owner": owner, ":trigger": trigger_id, ":expires": expires_at, ":now": now}
        values[":write"] = uuid4().hex
        update, condition = _TAKE_LOCK, conditions.UNLOCKED
        for _ in range(MAX_TRIES):
            answer = self._update_row(key, update, condition, values, returns="ALL_NEW")
            row = answer.row
            # A call of ours whose answer was lost is refused when botocore repeats it.
            if isinstance(answer, WriteDone) or row.get("lock_write") == values[":write"]:
                return self._grant_lock(key, owner, trigger_id, row)
            if not row:
                return ConversationNotFound()
            if _is_locked(row, now):
                break
            busy = row.get("conversation_status") == Status.PROCESSING
            update, condition = (
                (_TAKE_OVER_LOCK, conditions.LOCK_EXPIRED)
                if busy
                else (_TAKE_LOCK, conditions.UNLOCKED)
            )
        return LockHeld(
            str(row.get("lock_trigger", "")),
            items.parse_time_or_zero(row.get("lock_expires_at")),
        )

    def _grant_lock(
        self, key: ConversationKey, owner: str, trigger_id: str, row: items.Row
    ) -> LockAcquired:
        grant = LockGrant(key, owner, trigger_id, row["lock_fence"])
        self._held[grant] = row
        for oldest in list(self._held)[:-_MAX_REMEMBERED_GRANTS]:
            self._held.pop(oldest, None)
        with release_on_error(self.release, grant):  # a newer process may be able to read it
            return LockAcquired(grant, items.conversation_from_row(row))

    def renew(self, grant: LockGrant, now: float, expires_at: float) -> bool:
        values = {":expires": expires_at, ":now": now, **conditions.values_from_grant(grant)}
        update = "SET #lock_expires_at = :expires"
        answer = self._update_row(grant.key, update, conditions.LOCK_HELD_IN_TIME, values)
        return isinstance(answer, WriteDone)

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Asked again after a lost answer it writes the same again."""
        noted = to_plain_data(outbox)
        row = {**self._held.get(grant, {}), "outbox": noted}
        if (size := sanitize.estimate_size(row)) > _MAX_BYTES_WITH_OUTBOX:
            # Not sent yet, when it is a reply: what cannot be noted is not sent.
            raise PermanentError(
                f"the reply is too long to be kept: with it the row has {size}"
            )
        values = {":outbox": noted, ":thread": thread_id, **conditions.values_from_grant(grant)}
        values[":at"] = self._clock.time()
        update = "SET #outbox = :outbox, #openai_thread_id = :thread, #updated_at = :at"
        if isinstance(
            self._update_row(grant.key, update, conditions.LOCK_HELD, values), ConditionFailed
        ):
            raise build_lock_lost_error(grant)

    def release(self, grant: LockGrant, status: str | None) -> None:
        update = (
            "SET #conversation_status = :status, #write_id = :write, #updated_at = :at "
            f"REMOVE {LOCK_ATTRIBUTES}"
        )
        mine = uuid4().hex
        row = self.read_held_row(grant)
        for _ in range(MAX_TRIES):
            at = {":write": mine, ":at": self._clock.time()}
            values = {**at, **bind_release(grant, row, status)}
            answer = self._update_row(grant.key, update, conditions.CAN_RELEASE_LOCK, values)
            if isinstance(answer, WriteDone) or answer.row.get("write_id") == mine:
                return self.forget(grant)
            if not items.is_held_by(answer.row, grant):
                raise build_lock_lost_error(grant)
            row = answer.row  # a person has said meanwhile what the status is to be
        raise build_row_changing_error()

    def set_status(self, key: ConversationKey, status: str) -> bool:
        if not is_valid_key(key):
            return False
        busy = False
        for _ in range(MAX_TRIES):
            name, condition = (
                ("previous_status", conditions.LOCKED)
                if busy
                else ("conversation_status", conditions.UNLOCKED)
            )
            update = f"SET #{name} = :status, #updated_at = :at"
            values = {":status": status, ":at": self._clock.time()}
            answer = self._update_row(key, update, condition, values)
            if isinstance(answer, WriteDone):
                return True
            if not answer.row:
                return False
            busy = answer.row.get("conversation_status") == Status.PROCESSING
        raise build_row_changing_error()

    # -- what a grant was given

    def read_held_row(self, grant: LockGrant) -> items.Row:
        """The row as it was acquired, but for what only others change: history and counts
        are as they were, for nobody else may write them. Read anew when it is forgotten.
        Raises LockLost."""
        row = self._held.get(grant) or self.read(grant.key)
        if not items.is_held_by(row, grant):
            raise build_lock_lost_error(grant)
        return row

    def forget(self, grant: LockGrant) -> None:
        self._held.pop(grant, None)

    # -- one update

    def _update_row(
        self,
        key: ConversationKey,
        update: str,
        condition: str,
        values: dict[str, Any],
        returns: str = "NONE",
    ) -> WriteDone | ConditionFailed:
        return self._client.write(
            "update_item",
            ReturnValues=returns,
            **self.build_update(key, update, condition, values),
        )

    def build_update(
        self, key: ConversationKey, update: str, condition: str, values: dict[str, Any]
    ) -> dict[str, Any]:
        """As UpdateItem takes it, and transactions do."""
        return {
            "TableName": self._table,
            "Key": build_conversation_key(key),
            "UpdateExpression": update,
            "ConditionExpression": condition,
            **conditions.bind_values(values, update, condition),
        }


def bind_release(grant: LockGrant, row: items.Row, status: str | None) -> dict[str, Any]:
    """The values of ENDABLE, and the status that follows."""
    previous = row.get("previous_status", "")
    return {
        ":previous": previous,
        ":status": rules.choose_released_status(previous, status),
        **conditions.values_from_grant(grant),
    }


def _is_locked(row: items.Row, now: float) -> bool:
    busy = row.get("conversation_status") == Status.PROCESSING
    return busy and items.parse_time_or_zero(row.get("lock_expires_at")) > now


def build_lock_lost_error(grant: LockGrant) -> LockLost:
    name = redact_id(grant.key.conversation_id)
    return LockLost(f"conversation {name}: the lock is not this grant's any more")


def build_row_changing_error() -> StoreUnavailable:
    return StoreUnavailable("DynamoDB: the conversation's row changes all the time")
