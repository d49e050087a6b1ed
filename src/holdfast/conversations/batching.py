"""Steps 4–6: what is answered together.

A batch is fixed when the writer is first asked for its reply. Another attempt answers the
same messages, whatever came meanwhile: the reply was written for these, and a message that
arrives before the send does not supersede it. It is answered next, in a turn of its own.
"""

from collections.abc import Iterable, Sequence

from holdfast.conversations import events as cv
from holdfast.conversations.merging import in_order, merged
from holdfast.conversations.messages import MAX_BODY
from holdfast.conversations.model import (
    Fragment,
    ParkedBatch,
    Staged,
    UnreadableFragment,
    parked_id_of,
    redacted_id,
)
from holdfast.conversations.outbox import Outbox
from holdfast.conversations.policy import ConversationPolicy
from holdfast.conversations.ports import ConversationStore
from holdfast.conversations.turn_state import BatchedTurn, EmptyBatch, LockedTurn, StillTyping
from holdfast.core.clock import Clock
from holdfast.core.events import Events

_MAX_BATCH = 100_000  # characters: what a row of the history surely holds


class BatchCollector:
    """Reads the stage, and makes a batch of it."""

    def __init__(
        self, store: ConversationStore, terms: ConversationPolicy, clock: Clock, events: Events
    ) -> None:
        self._store, self._terms, self._clock, self._events = store, terms, clock, events

    def gather(self, locked: LockedTurn) -> BatchedTurn | StillTyping | EmptyBatch:
        staged = self._store.staged(locked.trigger.conversation_id)
        fragments = self._fresh(locked, self._readable(locked, staged))
        if not fragments:
            return EmptyBatch()
        batch = self._batch(locked, fragments)
        wait = self._typing_seconds(locked, fragments) if batch.found is None else 0.0
        return StillTyping(wait) if wait > 0 else batch

    def _batch(self, locked: LockedTurn, fragments: tuple[Fragment, ...]) -> BatchedTurn:
        outbox = locked.conversation.outbox
        begun = tuple(one for one in fragments if outbox and one.message_sid in outbox.sids)
        chosen = begun or _as_many_as_fit(fragments, self._terms.most_fragments)
        found: Outbox | None = outbox if begun else None
        return BatchedTurn(locked, chosen, merged(chosen), found)

    def _fresh(self, locked: LockedTurn, found: list[Fragment]) -> tuple[Fragment, ...]:
        """Without what was answered before: a webhook that is delivered again stages its
        message again, and nobody but this memory knows."""
        sids = [one.message_sid for one in found]
        known = self._store.processed(locked.grant.key, sids) if sids else set()
        if known:
            self._store.drop_staged(locked.trigger.conversation_id, known)
        return in_order(one for one in found if one.message_sid not in known)

    def _readable(self, locked: LockedTurn, staged: Sequence[Staged]) -> list[Fragment]:
        """One row that cannot be answered must not poison the others: it is parked."""
        good = []
        for row in staged:
            if isinstance(row, UnreadableFragment):
                self._put_aside(locked, row, f"this message cannot be read: {row.problem}")
            elif row.key.primary_channel != locked.trigger.primary_channel:
                self._put_aside(locked, row, "it is of another channel than its trigger")
            elif len(row.body) > MAX_BODY:  # staging would have refused it
                self._put_aside(locked, row, "its text is too long")
            else:
                good.append(row)
        return good

    def _put_aside(self, locked: LockedTurn, row: Staged, reason: str) -> None:
        now = self._clock.time()
        key = locked.grant.key
        parked = ParkedBatch(parked_id_of(key, [row.message_sid]), key, reason, now, (row,))
        self._store.park(None, parked, remember_until=now + self._terms.remember_seconds)
        name = redacted_id(locked.trigger.conversation_id)
        self._events.emit(cv.BatchParked(name, 1, reason))

    def _typing_seconds(self, locked: LockedTurn, fragments: Iterable[Fragment]) -> float:
        """How long to wait on; 0 when the customer is quiet or has waited long enough.

        What was waited is counted by the trigger: other machines' clocks may be wrong.
        """
        terms = self._terms
        left = terms.max_wait_seconds - terms.window_seconds - locked.trigger.waited_seconds
        quiet_for = self._clock.time() - max(one.staged_at for one in fragments)
        return min(left, terms.quiet_seconds - quiet_for)


def _as_many_as_fit(fragments: Sequence[Fragment], most: int) -> tuple[Fragment, ...]:
    """The first ones; at least one. The others have their turn after this one."""
    chosen: list[Fragment] = []
    letters = 0
    for one in fragments[:most]:
        letters += len(one.body)
        if chosen and letters > _MAX_BATCH:
            break
        chosen.append(one)
    return tuple(chosen)
