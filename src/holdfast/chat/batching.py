"""Steps 4–6 of a turn: choose which staged messages are answered together.

A batch is fixed when the writer is first asked for its reply. Another attempt answers the
same messages, whatever arrived meanwhile, because the reply was written for these. A message
that arrives before the send does not replace that reply. It is answered next, in a turn of
its own.
"""

from collections.abc import Callable, Iterable, Sequence

from holdfast.chat.merging import merge_texts, sort_fragments
from holdfast.chat.messages import MAX_BODY
from holdfast.chat.model import (
    ConversationKey,
    Fragment,
    Staged,
    UnreadableFragment,
)
from holdfast.chat.policy import ConversationPolicy
from holdfast.chat.ports import ConversationStore
from holdfast.chat.turn_state import BatchedTurn, EmptyBatch, LockedTurn, StillTyping
from holdfast.lease.clock import Clock

_MAX_BATCH = 100_000  # characters that a row of the history is sure to hold


class BatchCollector:
    """The reader of staged messages that makes a batch of them."""

    def __init__(
        self,
        store: ConversationStore,
        policy: ConversationPolicy,
        clock: Clock,
        park: Callable[[ConversationKey, Sequence[Staged], str], None],
    ) -> None:
        self._store, self._policy, self._clock, self._park = store, policy, clock, park

    def collect(self, locked: LockedTurn) -> BatchedTurn | StillTyping | EmptyBatch:
        """Return the batch to answer now, or why there is none yet.

        Rows that cannot be answered are parked, and rows that were answered before are
        removed. A batch that an earlier attempt began does not wait for more messages.
        """
        staged = self._store.staged(locked.trigger.conversation_id)
        fragments = self._drop_answered(locked, self._park_unusable(locked, staged))
        if not fragments:
            return EmptyBatch()
        batch = self._choose_batch(locked, fragments)
        wait = self._typing_seconds(locked, fragments) if batch.earlier is None else 0.0
        return StillTyping(wait) if wait > 0 else batch

    def _choose_batch(self, locked: LockedTurn, fragments: tuple[Fragment, ...]) -> BatchedTurn:
        outbox = locked.conversation.outbox
        begun = tuple(row for row in fragments if outbox and row.message_sid in outbox.sids)
        chosen = begun or _take_fitting(fragments, self._policy.most_fragments)
        return BatchedTurn(locked, chosen, merge_texts(chosen), outbox if begun else None)

    def _drop_answered(
        self, locked: LockedTurn, fragments: list[Fragment]
    ) -> tuple[Fragment, ...]:
        """Remove messages that were answered before, and return the others in order.

        A webhook that is delivered again stages its message again. Only the list of
        processed sids shows that it was answered.
        """
        sids = [fragment.message_sid for fragment in fragments]
        known = self._store.processed(locked.grant.key, sids) if sids else set()
        if known:
            self._store.drop_staged(locked.trigger.conversation_id, known)
        return sort_fragments(row for row in fragments if row.message_sid not in known)

    def _park_unusable(self, locked: LockedTurn, staged: Sequence[Staged]) -> list[Fragment]:
        """Park each row that cannot be answered, so that it does not block the others."""
        usable, key = [], locked.grant.key
        for row in staged:
            if isinstance(row, UnreadableFragment):
                self._park(key, [row], f"this message cannot be read: {row.problem}")
            elif row.key.primary_channel != key.primary_channel:
                self._park(key, [row], "its channel is not the channel of its trigger")
            elif len(row.body) > MAX_BODY:  # staging would have refused it
                self._park(key, [row], "its text is too long")
            else:
                usable.append(row)
        return usable

    def _typing_seconds(self, locked: LockedTurn, fragments: Iterable[Fragment]) -> float:
        """Return how long to wait for more messages.

        The result is 0 or less when the customer is quiet or has waited long enough. The
        trigger counts how long the batch has waited, because the clocks of other machines
        may be wrong.
        """
        policy = self._policy
        left = policy.max_wait_seconds - policy.window_seconds - locked.trigger.waited_seconds
        quiet_for = self._clock.time() - max(fragment.staged_at for fragment in fragments)
        return min(left, policy.quiet_seconds - quiet_for)


def _take_fitting(fragments: Sequence[Fragment], max_fragments: int) -> tuple[Fragment, ...]:
    """Return the first fragments that fit into one batch, and at least one.

    The others are answered in the next turn.
    """
    chosen: list[Fragment] = []
    characters = 0
    for fragment in fragments[:max_fragments]:
        characters += len(fragment.body)
        if chosen and characters > _MAX_BATCH:
            break
        chosen.append(fragment)
    return tuple(chosen)
