"""Create, read and lock the conversations' rows.

One call takes a lock and returns the row. A second call is needed only for an expired lock,
because it must not store `processing_reply` as the previous status, and one condition cannot
choose between two updates.
"""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from holdfast.chat import store_rules as rules
from holdfast.chat.actor import release_on_error
from holdfast.chat.dynamodb import conditions, items
from holdfast.chat.dynamodb.conditions import CALLS
from holdfast.chat.dynamodb.messages import MessageStore
from holdfast.chat.errors import LockLost, PermanentError
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    ConversationNotFound,
    LockAcquired,
    LockGrant,
    LockHeld,
    Status,
    redact_id,
)
from holdfast.chat.outbox import Outbox, to_plain_data
from holdfast.errors import StoreUnavailable
from holdfast.store.dynamodb.client import ConditionFailed, WriteDone

# other processes may change the row between the read and the write, but not forever
MAX_TRIES = 5
_MAX_REMEMBERED_GRANTS = 64  # grants of one process; older ones cost an extra read
# The rest is for what `finish` adds: numbers, a thread, and recent messages instead of the
# outbox.
_MAX_BYTES_WITH_OUTBOX = 380 * 1024

_SET_LOCK = (
    "#lock_owner = :owner, #lock_trigger = :trigger, #lock_expires_at = :expires, "
    "#updated_at = :now"
)
_TAKE_LOCK = (
    "SET #previous_status = if_not_exists(#conversation_status, :none), "
    "#conversation_status = :processing, "
    f"#lock_write = :write, {_SET_LOCK} ADD #lock_fence :one"
)
_TAKE_OVER_LOCK = (
    "SET #previous_status = if_not_exists(#previous_status, :none), "
    f"#lock_write = :write, {_SET_LOCK} ADD #lock_fence :one"
)
# By whether a worker is answering, which only a refused write tells.
_ACQUIRE = {
    False: (_TAKE_LOCK, conditions.UNLOCKED),
    True: (_TAKE_OVER_LOCK, conditions.LOCK_EXPIRED),
}
_SET_STATUS = {
    False: ("conversation_status", conditions.UNLOCKED),
    True: ("previous_status", conditions.LOCKED),
}
LOCK_ATTRIBUTES = "#lock_owner, #lock_trigger, #lock_expires_at, #lock_write, #previous_status"


class LockingStore(MessageStore):
    """The part of the store that has the conversations' rows and their locks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held: dict[LockGrant, items.Row] = {}  # the row at acquisition

    # -- reading and making

    def get(self, key: ConversationKey) -> Conversation | None:
        """Return the conversation, or None if there is none."""
        row = self._read_conversation(key)
        return items.conversation_from_row(row) if row else None

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        """Yield all conversations, or those with this id, from a table scan.

        No index has the id as its key, so a search by id scans the whole table.
        """
        filter_expression = "" if conversation_id is None else "#conversation_id = :id"
        scan = CALLS.query(
            self._tables.conversations, "", {":id": conversation_id}, filter_expression
        )
        return map(items.conversation_from_row, self._client.read_pages("scan", **scan))

    def create(self, conversation: Conversation) -> bool:
        """Store a new conversation. Return False if it exists already."""
        return self._put_if_new(
            self._tables.conversations,
            items.row_from_conversation(conversation),
            conditions.NEW_CONVERSATION,
            "the conversation",
        )

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
        if not items.is_valid_key(key):
            return ConversationNotFound()
        values = {":owner": owner, ":trigger": trigger_id, ":expires": expires_at, ":now": now}
        values[":write"] = uuid4().hex
        is_busy = False
        for _ in range(MAX_TRIES):
            update, condition = _ACQUIRE[is_busy]
            result = self._update_row(key, update, condition, values, returns="ALL_NEW")
            row = result.row
            # botocore repeats a call whose response was lost, and the repeated call is refused
            # although the first one took the lock.
            if isinstance(result, WriteDone) or row.get("lock_write") == values[":write"]:
                return self._grant_lock(key, owner, trigger_id, row)
            if not row:
                return ConversationNotFound()
            if _is_locked(row, now):
                break
            is_busy = row.get("conversation_status") == Status.PROCESSING
        until = items.parse_time_or_zero(row.get("lock_expires_at"))
        return LockHeld(str(row.get("lock_trigger", "")), until)

    def _grant_lock(
        self, key: ConversationKey, owner: str, trigger_id: str, row: items.Row
    ) -> LockAcquired:
        grant = LockGrant(key, owner, trigger_id, row["lock_fence"])
        self._held[grant] = row
        for oldest in list(self._held)[:-_MAX_REMEMBERED_GRANTS]:
            self._held.pop(oldest, None)
        # a newer version may be able to read the row
        with release_on_error(self.release, grant):
            return LockAcquired(grant, items.conversation_from_row(row))

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        """Extend the lock. Return False if this grant lost it or it expired."""
        values = {":expires": expires_at, ":now": now, **conditions.values_from_grant(grant)}
        update = "SET #lock_expires_at = :expires"
        result = self._update_row(grant.key, update, conditions.LOCK_HELD_IN_TIME, values)
        return isinstance(result, WriteDone)

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Write the outbox and the thread. Repeating it after a lost response writes the same
        again.

        Raises LockLost, and PermanentError if the row would become too large.
        """
        noted = to_plain_data(outbox)
        row = {**self._held.get(grant, {}), "outbox": noted}
        if (size := items.estimate_size(row)) > _MAX_BYTES_WITH_OUTBOX:
            # A reply is noted before it is sent, so a reply that cannot be noted is not sent.
            raise PermanentError(
                f"the reply is too long to store: the row would have {size} bytes, "
                f"the limit is {_MAX_BYTES_WITH_OUTBOX}"
            )
        values = {":outbox": noted, ":thread": thread_id, **conditions.values_from_grant(grant)}
        values[":at"] = self._clock.time()
        update = "SET #outbox = :outbox, #openai_thread_id = :thread, #updated_at = :at"
        if isinstance(
            self._update_row(grant.key, update, conditions.LOCK_HELD, values), ConditionFailed
        ):
            raise build_lock_lost_error(grant)

    def release(self, grant: LockGrant, status: str | None) -> None:
        """Release the lock without a reply. Raises LockLost."""
        update = (
            "SET #conversation_status = :status, #write_id = :write, #updated_at = :at "
            f"REMOVE {LOCK_ATTRIBUTES}"
        )
        release = LockRelease(grant, self._read_held_row(grant))
        for _ in range(MAX_TRIES):
            values = {":at": self._clock.time(), **release.bind(status)}
            result = self._update_row(grant.key, update, conditions.CAN_RELEASE_LOCK, values)
            if isinstance(result, WriteDone) or release.is_done(result.row):
                return self._forget(grant)
        raise build_row_changing_error()

    def set_status(self, key: ConversationKey, status: str) -> bool:
        """Set the status an operator chose. Return False if there is no such conversation."""
        if not items.is_valid_key(key):
            return False
        is_busy = False
        for _ in range(MAX_TRIES):
            name, condition = _SET_STATUS[is_busy]
            update = f"SET #{name} = :status, #updated_at = :at"
            values = {":status": status, ":at": self._clock.time()}
            result = self._update_row(key, update, condition, values)
            if isinstance(result, WriteDone):
                return True
            if not result.row:
                return False
            is_busy = result.row.get("conversation_status") == Status.PROCESSING
        raise build_row_changing_error()

    # -- the row of a grant

    def _read_held_row(self, grant: LockGrant) -> items.Row:
        """Return the row as it was acquired.

        History and counts are still valid, because only the holder of the lock may write them.
        A row that is no longer remembered is read again. Raises LockLost.
        """
        row = self._held.get(grant) or self._read_conversation(grant.key)
        if not items.is_held_by(row, grant):
            raise build_lock_lost_error(grant)
        return row

    def _forget(self, grant: LockGrant) -> None:
        """Drop the remembered row of a grant that has ended."""
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
            **self._build_update(key, update, condition, values),
        )

    def _build_update(
        self, key: ConversationKey, update: str, condition: str, values: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of UpdateItem, which also fit into a transaction."""
        return CALLS.update(
            self._tables.conversations,
            items.build_conversation_key(key),
            update,
            condition,
            values,
        )


class LockRelease:
    """The write that releases a lock. It may take several tries, each from a newer row.

    Its id in the row shows that a try succeeded although its response was lost.
    """

    def __init__(self, grant: LockGrant, row: items.Row) -> None:
        self.grant, self.row = grant, row
        self._write_id = uuid4().hex

    def bind(self, status: str | None) -> dict[str, Any]:
        """Return the values of CAN_RELEASE_LOCK, and the id and status to write."""
        previous = self.row.get("previous_status", "")
        return {
            ":write": self._write_id,
            ":previous": previous,
            ":status": rules.choose_released_status(previous, status),
            **conditions.values_from_grant(self.grant),
        }

    def is_done(self, refused_row: items.Row) -> bool:
        """Return whether an earlier try released the lock and only its response was lost.

        False means that an operator has set another status meanwhile, so the caller must try
        again. Raises LockLost.
        """
        self.row = refused_row
        if refused_row.get("write_id") == self._write_id:
            return True
        if not items.is_held_by(refused_row, self.grant):
            raise build_lock_lost_error(self.grant)
        return False


def _is_locked(row: items.Row, now: float) -> bool:
    is_busy = row.get("conversation_status") == Status.PROCESSING
    return is_busy and items.parse_time_or_zero(row.get("lock_expires_at")) > now


def build_lock_lost_error(grant: LockGrant) -> LockLost:
    """Return the error for a grant that no longer holds the lock."""
    name = redact_id(grant.key.conversation_id)
    return LockLost(f"conversation {name}: this grant no longer holds the lock")


def build_row_changing_error() -> StoreUnavailable:
    """Return the error for a row that changed before every try to write it."""
    return StoreUnavailable(
        "DynamoDB: the conversation's row changed before every try to write it"
    )
