"""Steps 4–6 of a turn: choose which staged messages are answered together.

A step takes one of these states and returns the next:

    LockedTurn ─▶ BatchedTurn ─▶ WrittenTurn ─▶ … with all parts sent ─▶ a Turn of the history

A batch is fixed when the writer is first asked for its reply. Another attempt answers the
same messages, whatever arrived meanwhile, because the reply was written for these. A message
that arrives before the send does not replace that reply. It is answered next, in a turn of
its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.chat.messages import MAX_BODY, Trigger
from holdfast.chat.model import (
    Conversation,
    ConversationKey,
    ConversationPolicy,
    Fragment,
    HistoryMessage,
    LockGrant,
    Staged,
    Turn,
    UnreadableFragment,
)
from holdfast.chat.outbox import Outbox, SentPart, WriterAnswer
from holdfast.lease.lease import Lease
from holdfast.worker.runner import Context

R = TypeVar("R", bound=Staged)

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


# -- the batch


def find_row_problem(row: Staged, key: ConversationKey) -> str:
    """Return why a staged row of this conversation cannot be answered, or ''."""
    if isinstance(row, UnreadableFragment):
        return f"this message cannot be read: {row.problem}"
    if row.key.primary_channel != key.primary_channel:
        return "its channel is not the channel of its trigger"
    if len(row.body) > MAX_BODY:  # staging would have refused it
        return "its text is too long"
    return ""


def select_begun(rows: Sequence[R], outbox: Outbox | None) -> tuple[R, ...]:
    """Return the rows for which an earlier attempt began a reply."""
    return tuple(row for row in rows if outbox and row.message_sid in outbox.sids)


def choose_batch(
    locked: LockedTurn, fragments: Sequence[Fragment], max_fragments: int
) -> BatchedTurn:
    """Return the batch to answer now: the one that was begun, or the first fragments."""
    outbox = locked.conversation.outbox
    begun = select_begun(fragments, outbox)
    chosen = begun or _take_fitting(fragments, max_fragments)
    return BatchedTurn(locked, chosen, merge_texts(chosen), outbox if begun else None)


def compute_typing_seconds(
    policy: ConversationPolicy, waited_seconds: float, quiet_seconds: float
) -> float:
    """Return how long to wait for more messages.

    The result is 0 or less when the customer is quiet or has waited long enough. The trigger
    counts how long the batch has waited, because the clocks of other machines may be wrong.
    """
    left = policy.max_wait_seconds - policy.window_seconds - waited_seconds
    return min(left, policy.quiet_seconds - quiet_seconds)


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


def build_turn(
    sids: tuple[str, ...],
    fragments: Sequence[Fragment],
    answer: WriterAnswer,
    parts: Sequence[SentPart],
    thread: tuple[str, str],
    now: float,
    status: str = "",
) -> Turn:
    """Return the turn with both messages of the history (step 11).

    The status of the reply is the given one, or that of its last part.
    """
    # Rows of a parked batch may have become unreadable.
    first_sid = next((row.message_sid for row in fragments), next(iter(sids), ""))
    last = parts[-1] if parts else SentPart("", "")
    details = {
        "status": status or last.status,
        "sids": [part.message_sid for part in parts],
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
    }
    text = merge_texts(fragments)
    return Turn(
        sids=sids,
        user=HistoryMessage("user", text, now, first_sid, {"sids": list(sids)}),
        assistant=HistoryMessage("assistant", answer.text, now, last.message_sid, details),
        thread_id=thread[0],
        thread_mark=thread[1],
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
    )
