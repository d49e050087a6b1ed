"""Steps 4–6 of a turn: choose which staged messages are answered together.

A step takes one of these states and returns the next:

    LockedTurn ─▶ BatchedTurn ─▶ WrittenTurn ─▶ … with all parts sent ─▶ a Turn of the history

A batch is fixed when the writer is first asked for its reply. Another attempt answers the
same messages, whatever arrived meanwhile, because the reply was written for these. A message
that arrives before the send does not replace that reply. It is answered next, in a turn of
its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.chat.messages import MAX_BODY, Trigger
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    ConversationPolicy,
    Fragment,
    LockGrant,
    Staged,
    UnreadableFragment,
)
from holdfast.chat.outbox import Outbox, SentPart, WriterAnswer
from holdfast.chat.ports import ConversationStore
from holdfast.lease.clock import Clock
from holdfast.lease.lease import Lease
from holdfast.worker.runner import Context

_MAX_BATCH = 100_000  # characters that a row of the history is sure to hold


@dataclass(frozen=True, slots=True)
class LockedTurn:
    """The state after steps 1–3: the trigger is read, and the lock is held and renewed.

    `conversation` is the canonical row. The write that acquired the lock returned it, so
    step 7 does not read it again.
    """

    trigger: Trigger
    ctx: Context = field(repr=False)
    grant: LockGrant
    lease: Lease
    conversation: Conversation

    @property
    def log_name(self) -> str:
        """Return the conversation's id as logs may show it."""
        return self.grant.key.log_name

    def check(self, now: float) -> None:
        """Raise LeaseLost unless this worker certainly holds both the message and the lock."""
        self.ctx.raise_if_lost()
        self.lease.check(now)


@dataclass(frozen=True, slots=True)
class BatchedTurn:
    """The state after steps 4–6: the messages that are answered together, merged.

    `earlier` is the outbox that an earlier attempt at this batch left behind.
    """

    locked: LockedTurn
    fragments: tuple[Fragment, ...]
    text: str = field(repr=False)
    earlier: Outbox | None

    @property
    def sids(self) -> tuple[str, ...]:
        """Return the message ids of the batch.

        If an earlier attempt left an outbox, they are its ids, because its reply was written
        for these.
        """
        if self.earlier is not None:
            return self.earlier.sids
        return tuple(fragment.message_sid for fragment in self.fragments)


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """The state after steps 7–9: the reply is known and stored.

    `parts` of it were sent already. After step 10 these are all.
    """

    batch: BatchedTurn
    answer: WriterAnswer
    thread_id: str
    parts: tuple[SentPart, ...] = ()


@dataclass(frozen=True, slots=True)
class StillTyping:
    """The customer is still typing, so the batch waits longer."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class EmptyBatch:
    """Every staged message was answered before."""


# -- the batch


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


def sort_fragments(fragments: Iterable[Fragment]) -> tuple[Fragment, ...]:
    """Return the fragments in the order in which they were received.

    The result does not depend on the order in which they were staged.
    """
    return tuple(sorted(fragments, key=lambda row: (row.received_at, row.message_sid)))


def merge_texts(fragments: Sequence[Fragment]) -> str:
    """Join the fragments in the given order, each on one line or more."""
    return "\n".join(map(_render_fragment, fragments))


def _render_fragment(fragment: Fragment) -> str:
    """Return the text and the names of its attachments.

    Attachments are named because a picture without words needs an answer, too.
    """
    attached = [f"[attached: {kind}]" for kind in fragment.media]
    return "\n".join([*([fragment.body] if fragment.body else []), *attached])
