"""The conversation store on rows: every call is one transaction that reads and writes rows.

The tables are conversations, messages, stage, windows, processed and parked. `rows` says which
columns they have. The rules are in `store_rules`. SQLite, memory and DynamoDB only differ in
how rows are stored.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from holdfast.chat import rows as row_values
from holdfast.chat import store_rules as rules
from holdfast.chat.errors import LockLost, ParkedNotFound
from holdfast.chat.model import (
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
    Status,
    Turn,
    WaitingConversation,
    Window,
)
from holdfast.chat.outbox import Outbox, SendingReply, SentReply
from holdfast.chat.ports import ConversationStore
from holdfast.chat.rows import row_from_key
from holdfast.errors import StoreUnavailable
from holdfast.lease.clock import Clock
from holdfast.store.rows import Row, RowDatabase, Rows

T = TypeVar("T")

_MAX_SEQ = 10**12 - 1
_MAX_TRIES = 5  # to park messages that other workers are parking or answering at the same time


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """A conversation that was read, with the number of its row and the owner of its lock."""

    number: Any  # by which the history refers to the conversation
    owner: str  # of the lock, not of the conversation
    conversation: Conversation


class RowConversationStore(ConversationStore):
    """A store that only has to read and write rows.

    Locks, windows and a reply that is not being sent need not survive a power cut, because
    without them the batch is answered again. Their writes are not durable: they reach the disk
    with the next durable write, which happens at the latest before anything is sent.

    `clock` gives `updated_at` where the caller passes no time.
    """

    _cleans_up_later = False
    """Whether staged rows are removed after the transaction of their turn, not within it."""

    def __init__(self, database: RowDatabase, clock: Clock) -> None:
        self._database, self._clock = database, clock

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def _write_soon(self, body: Callable[[Rows], T]) -> T:
        return self._database.write(body, durable=False)

    # -- staging

    def create(self, conversation: Conversation) -> bool:
        """Store a new conversation. Return False if it exists already."""
        row = row_values.row_from_conversation(conversation)
        return self._database.write(lambda rows: rows.insert("conversations", [row])) > 0

    def stage(self, fragment: Fragment, *, expires_at: float) -> bool:
        """Stage a fragment. Return False if it is staged already."""
        row = row_values.row_from_staged(fragment, fragment.key, fragment.staged_at, expires_at)
        return self._database.write(lambda rows: rows.insert("stage", [row])) > 0

    def open_window(self, window: Window, *, now: float, untriggered_before: float) -> bool:
        """Open the window. Return False if another window is open."""

        def open_it(rows: Rows) -> bool:
            current = _find_window(rows, window.conversation_id)
            if current and rules.is_blocking(current, window, now, untriggered_before):
                return False
            rows.replace("windows", [row_values.row_from_window(window)])
            return True

        return self._write_soon(open_it)

    def mark_triggered(self, window: Window) -> None:
        """Note that the window's trigger is in the queue, if the window is still stored."""
        where = _match_window(window.conversation_id, window.trigger_id)
        self._write_soon(lambda rows: rows.update("windows", [({"triggered": True}, where)]))

    def window(self, conversation_id: str) -> Window | None:
        """Return the conversation's window, expired or not."""
        return self._database.read(lambda rows: _find_window(rows, conversation_id))

    def close_window(self, conversation_id: str, trigger_id: str) -> None:
        """Close the window if it belongs to this trigger."""
        where = _match_window(conversation_id, trigger_id)
        self._write_soon(lambda rows: rows.delete("windows", [where]))

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

        def take(rows: Rows) -> LockAcquired | LockHeld | ConversationNotFound:
            stored = self._find(rows, key)
            if stored is None:
                return ConversationNotFound()
            before = stored.conversation
            if before.is_locked(now):
                return LockHeld(before.lock_trigger, before.lock_expires_at)
            locked = rules.acquire_lock(before, trigger_id, now, expires_at)
            grant = LockGrant(key, owner, trigger_id, locked.lock_fence)
            _update(rows, stored, locked, owner)
            if before.status == Status.PROCESSING:
                self._end_renewals(rows, stored, grant, expires_at)
            return LockAcquired(grant, locked)

        return self._write_soon(take)

    def _end_renewals(
        self, rows: Rows, stored: StoredConversation, grant: LockGrant, expires_at: float
    ) -> None:
        """Keep the holder that this grant replaces from renewing the lock, where the row of
        the conversation alone does not.
        """

    def renew(self, grant: LockGrant, *, now: float, expires_at: float) -> bool:
        """Extend the lock. Return False if this grant lost it or it expired."""
        change = {"lock_expires_at": expires_at}
        where = {**_match_grant(grant), "lock_expires_at >": now}
        return (
            self._write_soon(lambda rows: rows.update("conversations", [(change, where)])) > 0
        )

    def release(self, grant: LockGrant, status: str | None) -> None:
        """Release the lock without a reply. Raises LockLost."""

        def release_it(rows: Rows) -> None:
            stored = self._require_held(rows, grant)
            now = self._clock.time()
            _update(rows, stored, rules.release_lock(stored.conversation, status, now))

        self._write_soon(release_it)

    # -- the batch

    def staged(self, conversation_id: str) -> list[Staged]:
        """Return every staged row of the conversation."""
        where = {"conversation_id": conversation_id}
        staged = self._database.read(lambda rows: rows.select("stage", where))
        return [row_values.staged_from_row(row) for row in staged]

    def processed(self, key: ConversationKey, sids: Collection[str]) -> set[str]:
        """Return those of the sids that were answered or parked already."""
        wheres = _match_sids(key, sids)
        found = self._database.read(lambda rows: rows.find("processed", wheres))
        return {row["message_sid"] for row in found}

    def note(self, grant: LockGrant, outbox: Outbox, thread_id: str) -> None:
        """Write down how far the reply has come. Raises LockLost."""
        noted = {
            "outbox": row_values.row_from_outbox(outbox),
            "thread_id": thread_id,
            "updated_at": self._clock.time(),
        }

        def note_it(rows: Rows) -> None:
            if not rows.update("conversations", [(noted, _match_grant(grant))]):
                raise _build_lock_lost_error()

        durable = isinstance(outbox, SendingReply | SentReply)
        self._database.write(note_it, durable=durable)

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
        end_turn = partial(
            self._end_turn,
            grant=grant,
            turn=turn,
            now=now,
            remember_until=remember_until,
            parked_id=parked_id,
        )
        try:
            self._database.write(end_turn)
        except _MessagesNotNumbered as found:
            self._adopt_messages(grant, found.stored)
            self._database.write(end_turn)
        if self._cleans_up_later:
            # If it fails, the next worker removes them, because they are marked as processed.
            with suppress(StoreUnavailable):
                self.drop_staged(grant.key.conversation_id, turn.sids)

    def _end_turn(
        self,
        rows: Rows,
        *,
        grant: LockGrant,
        turn: Turn,
        now: float,
        remember_until: float,
        parked_id: str | None,
    ) -> None:
        stored = self._require_held(rows, grant)
        before = stored.conversation
        if not all(message.seq for message in before.messages):
            raise _MessagesNotNumbered(stored)
        if parked_id is not None:
            _delete_parked(rows, _find_parked(rows, parked_id, grant.key))
        after, (asked, answer) = rules.finish_turn(before, turn, now)
        if not self._insert_message(rows, stored, asked):
            # The conversation's row was created anew, and its history is older.
            before = replace(before, message_count=self._read_last_seq(rows, stored))
            after, (asked, answer) = rules.finish_turn(before, turn, now)
            self._insert_message(rows, stored, asked)
        if not self._insert_message(rows, stored, answer):
            raise StoreUnavailable("the history has a message with this number already")
        _update(rows, stored, after)
        rows.replace("processed", _make_marks(grant.key, turn.sids, remember_until))
        if not self._cleans_up_later:
            _delete_staged(rows, grant.key.conversation_id, turn.sids)
        self._delete_expired(rows, now)

    def _adopt_messages(self, grant: LockGrant, stored: StoredConversation) -> None:
        """Number messages that other software put into the conversation's row, and copy them
        to the history, because the row keeps only recent ones.

        Repeating it is safe, because the numbers are fixed while the lock is held. Raises
        LockLost.
        """
        numbered = rules.number_messages(
            stored.conversation,
            self._database.read(partial(self._read_last_seq, stored=stored)),
        )
        pairs = zip(stored.conversation.messages, numbered.messages, strict=True)
        adopted = [
            row
            for before, after in pairs
            if not before.seq
            for row in self._rows_from_history(stored.number, after)
        ]
        for group in self._database.split(adopted, None):
            self._database.write(partial(_replace_messages, group=group))

        def number(rows: Rows) -> None:
            current = self._require_held(rows, grant)
            if current.conversation.messages != stored.conversation.messages:
                raise StoreUnavailable("other software keeps adding messages to the row")
            _update(rows, current, numbered, grant.owner)

        self._database.write(number)

    def _insert_message(
        self, rows: Rows, stored: StoredConversation, message: HistoryMessage
    ) -> bool:
        history = self._rows_from_history(stored.number, message)
        return rows.insert("messages", history) == len(history)

    def _rows_from_history(self, number: Any, message: HistoryMessage) -> list[dict[str, Any]]:
        """Return the rows of a message, of which there are several if one cannot hold it."""
        return [row_values.row_from_history(number, message)]

    def _delete_expired(self, rows: Rows, now: float) -> None:
        """Delete some expired rows, in a transaction that a turn makes anyway."""

    def drop_staged(self, conversation_id: str, sids: Collection[str]) -> None:
        """Delete the staged rows of these sids."""
        for group in self._database.split(dict.fromkeys(sids), None):
            self._write_soon(
                partial(_delete_staged, conversation_id=conversation_id, sids=group)
            )

    # -- for operators

    def park(
        self, grant: LockGrant | None, parked: ParkedBatch, *, remember_until: float
    ) -> None:
        """Park the batch, and release the lock if a grant is given.

        If a batch needs several transactions and the process crashes in between, some messages
        are parked and the others are still staged, and the lock expires.
        """
        if grant is not None:
            return self._park_slices(grant, parked, remember_until)
        for _ in range(_MAX_TRIES):
            known = self.processed(parked.key, parked.sids)
            self.drop_staged(parked.key.conversation_id, known)
            parked = rules.drop_processed(parked, known)
            if not parked.staged:
                return None
            try:
                return self._park_slices(None, parked, remember_until)
            except _ProcessedMeanwhile:
                continue
        raise StoreUnavailable("other workers kept parking or answering these messages")

    def _park_slices(
        self, grant: LockGrant | None, parked: ParkedBatch, remember_until: float
    ) -> None:
        slices = list(self._split_parked(parked.staged)) or [()]
        for number, staged in enumerate(slices):
            part = replace(parked, staged=tuple(staged))
            marks = _make_marks(part.key, part.sids, remember_until)
            is_last = number == len(slices) - 1
            self._database.write(
                partial(
                    self._park_slice,
                    grant=grant,
                    part=part,
                    parked=self._rows_from_parked(part, number),
                    marks=marks,
                    is_last=is_last,
                )
            )

    def _park_slice(
        self,
        rows: Rows,
        *,
        grant: LockGrant | None,
        part: ParkedBatch,
        parked: Sequence[Row],
        marks: Sequence[Row],
        is_last: bool,
    ) -> None:
        if grant is not None:
            stored = self._require_held(rows, grant)
            if is_last:
                _update(rows, stored, rules.park_batch(stored.conversation, part))
            else:  # only the lock is checked
                _update(rows, stored, stored.conversation, stored.owner)
            rows.replace("processed", marks)
        elif rows.insert("processed", marks) < len(marks):
            raise _ProcessedMeanwhile
        # A batch that is parked already stays as it is, because the first reason counts.
        rows.insert("parked", parked)
        _delete_staged(rows, part.key.conversation_id, part.sids)
        self._delete_expired(rows, part.parked_at)

    def _split_parked(self, staged: Sequence[Staged]) -> Iterator[Sequence[Staged]]:
        """Yield the messages that one transaction parks, in order."""
        yield staged

    def _rows_from_parked(self, part: ParkedBatch, _number: int) -> list[dict[str, Any]]:
        """Return the rows of one slice of a parked batch."""
        return [row_values.row_from_parked(part)]

    def parked(self) -> Iterator[ParkedBatch]:
        """Yield all parked batches, the oldest first."""
        rows = self._database.scan("parked", {}, key="parked_id", order_by="parked_at")
        batches = row_values.batches_from_rows(rows)
        return iter(sorted(batches, key=lambda batch: batch.parked_at))

    def unpark(
        self, parked_id: str, *, back_to_stage: bool, now: float, expires_at: float
    ) -> ParkedBatch:
        """Take a parked batch out and return it. Raises ParkedNotFound."""
        head, *parts = self._database.read(lambda rows: _find_parked(rows, parked_id))
        [batch] = row_values.batches_from_rows([head, *parts])
        # The head goes last, so that an interrupted call can be repeated.
        for group in [*([part] for part in parts[:-1]), [*parts[-1:], head]]:
            messages = [m for row in group for m in row_values.parked_messages_from_row(row)]
            restaged = [
                row_values.row_from_staged(message, batch.key, now, expires_at)
                for message in rules.restage(messages if back_to_stage else [], now)
            ]
            self._database.write(partial(_take_out, parked=group, restaged=restaged))
        return batch

    def get(self, key: ConversationKey) -> Conversation | None:
        """Return the conversation, or None if there is none."""
        stored = self._database.read(lambda rows: self._find(rows, key))
        return stored.conversation if stored else None

    def conversations(self, conversation_id: str | None = None) -> Iterator[Conversation]:
        """Yield all conversations, or those with this id, the latest first."""
        where = {} if conversation_id is None else {"conversation_id": conversation_id}
        listed = self._database.scan(
            "conversations",
            where,
            key="conversation_no",
            order_by="updated_at",
            descending=True,
        )
        return map(row_values.conversation_from_row, listed)

    def set_status(self, key: ConversationKey, status: str) -> bool:
        """Set the status that an operator chose. Return False if there is no such
        conversation.
        """

        def set_it(rows: Rows) -> bool:
            stored = self._find(rows, key)
            if stored is None:
                return False
            after = rules.set_status(stored.conversation, status, self._clock.time())
            _update(rows, stored, after, stored.owner)
            return True

        return self._database.write(set_it)

    def history(
        self, key: ConversationKey, *, before: int | None = None, limit: int = 50
    ) -> list[HistoryMessage]:
        """Return up to `limit` history messages in order."""
        last = _MAX_SEQ if before is None else before

        def read(rows: Rows) -> Sequence[HistoryMessage]:
            stored = self._find(rows, key)
            if stored is None or limit < 1:
                return []
            page = self._read_messages(rows, stored.number, last, limit)
            if page or before is not None:
                return page[::-1]
            # Other software keeps the messages in the row. The first turn that Holdfast
            # finishes copies them to the history.
            return stored.conversation.messages[-limit:]

        return list(self._database.read(read))

    def _read_last_seq(self, rows: Rows, stored: StoredConversation) -> int:
        newest = self._read_messages(rows, stored.number, _MAX_SEQ, 1)
        return max((message.seq for message in newest), default=0)

    def _read_messages(
        self, rows: Rows, number: Any, before: int, limit: int
    ) -> list[HistoryMessage]:
        """Return the last messages before a number, the newest first."""
        where = {"conversation_no": number, "seq <": before}
        page = rows.select("messages", where, order_by="seq", descending=True, limit=limit)
        return [row_values.message_from_row(row) for row in page]

    # -- for the sweeper

    def waiting(self) -> Iterator[WaitingConversation]:
        """Yield the conversations that have staged rows."""
        rows = self._database.scan("stage", {}, key="rowid")
        return iter(row_values.summarize_staged(rows))

    # -- the rows of one conversation, within a transaction

    def _find(self, rows: Rows, key: ConversationKey) -> StoredConversation | None:
        """Return the conversation with the end of its lock, or None if there is none."""
        return self._find_row(rows, key)

    def _find_row(self, rows: Rows, key: ConversationKey) -> StoredConversation | None:
        for row in rows.select("conversations", row_from_key(key)):
            conversation = row_values.conversation_from_row(row)
            return StoredConversation(row["conversation_no"], row["lock_owner"], conversation)
        return None

    def _require_held(self, rows: Rows, grant: LockGrant) -> StoredConversation:
        """Return the conversation whose lock this grant holds. Raises LockLost."""
        stored = self._find_row(rows, grant.key)
        if stored is None or not rules.has_lock(grant, stored.conversation, stored.owner):
            raise _build_lock_lost_error()
        return stored


class _MessagesNotNumbered(Exception):
    """Other software put messages into the conversation's row, and they are not in the
    history.
    """

    def __init__(self, stored: StoredConversation) -> None:
        super().__init__()
        self.stored = stored


class _ProcessedMeanwhile(Exception):
    """Some messages that were to be parked were answered or parked by another worker."""


def _match_grant(grant: LockGrant) -> dict[str, Any]:
    """Return the condition that this grant holds the lock, as `rules.has_lock` states it.

    The most frequent writes of a turn use it, so that they need not read the conversation
    first.
    """
    return {
        **row_from_key(grant.key),
        "status": Status.PROCESSING.value,
        "lock_owner": grant.owner,
        "lock_fence": grant.fence,
    }


def _build_lock_lost_error() -> LockLost:
    return LockLost("this grant no longer holds the lock of the conversation")


def _update(
    rows: Rows, stored: StoredConversation, after: Conversation, owner: str = ""
) -> None:
    """Write the columns that changed, and the owner of the lock."""
    changes = row_values.find_changes(stored.conversation, after) | {"lock_owner": owner}
    rows.update("conversations", [(changes, row_from_key(after.key))])


def _replace_messages(rows: Rows, group: Sequence[Row]) -> None:
    rows.replace("messages", group)


def _find_window(rows: Rows, conversation_id: str) -> Window | None:
    for row in rows.select("windows", {"conversation_id": conversation_id}):
        return row_values.window_from_row(row)
    return None


def _match_window(conversation_id: str, trigger_id: str) -> Row:
    return {"conversation_id": conversation_id, "trigger_id": trigger_id}


# -- processed and staged messages


def _match_sids(key: ConversationKey, sids: Collection[str]) -> list[dict[str, Any]]:
    return [{**row_from_key(key), "message_sid": sid} for sid in dict.fromkeys(sids)]


def _match_sid(staged: Row) -> dict[str, Any]:
    names = ("conversation_id", "primary_channel", "message_sid")
    return {name: staged[name] for name in names}


def _make_marks(
    key: ConversationKey, sids: Collection[str], until: float
) -> list[dict[str, Any]]:
    """Return the rows that mark these messages as processed."""
    return [{**where, "expires_at": until} for where in _match_sids(key, sids)]


def _delete_staged(rows: Rows, conversation_id: str, sids: Collection[str]) -> None:
    wheres = [
        {"conversation_id": conversation_id, "message_sid": sid} for sid in dict.fromkeys(sids)
    ]
    rows.delete("stage", wheres)


# -- parked batches


def _find_parked(
    rows: Rows, parked_id: str, key: ConversationKey | None = None
) -> Sequence[Row]:
    """Return the rows of a parked batch, of this conversation if a key is given.

    Raises ParkedNotFound.
    """
    where = {"parked_id": parked_id} | (row_from_key(key) if key else {})
    for head in rows.select("parked", where):
        conversation_id = head["conversation_id"]
        others = rows.select(
            "parked", {"conversation_id": conversation_id, "parked_id >": parked_id}
        )
        return [head, *(row for row in others if row.get("of") == parked_id)]
    raise _build_parked_not_found_error(parked_id)


def _take_out(rows: Rows, parked: Sequence[Row], restaged: Sequence[Row]) -> None:
    """Remove rows of a parked batch and stage their messages again. Raises ParkedNotFound."""
    wheres = [_match_parked(row) for row in parked]
    if len(rows.find("parked", wheres)) < len(wheres):
        raise _build_parked_not_found_error(parked[-1]["parked_id"])
    rows.delete("parked", wheres)
    rows.insert("stage", restaged)
    rows.delete("processed", [_match_sid(row) for row in restaged])


def _match_parked(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("conversation_id", "parked_id")}


def _delete_parked(rows: Rows, parked: Sequence[Row]) -> None:
    rows.delete("parked", [_match_parked(row) for row in parked])


def _build_parked_not_found_error(parked_id: str) -> ParkedNotFound:
    return ParkedNotFound(f"no batch is parked under {parked_id!r}")
