"""What is known of a batch after each step: a step takes one of these and returns the next.

LockedTurn ─▶ BatchedTurn ─▶ WrittenTurn ─▶ DeliveredTurn ─▶ a Turn of the history
"""

from dataclasses import dataclass, field

from holdfast.conversations.messages import Trigger
from holdfast.conversations.model import Conversation, Fragment, LockGrant
from holdfast.conversations.outbox import Outbox, SentPart, WriterAnswer
from holdfast.core.lease.lease import Lease
from holdfast.core.worker.context import Context


@dataclass(frozen=True, slots=True)
class LockedTurn:
    """Steps 1–3: the trigger is read, the lock is ours and under renewal. `conversation`
    is the canonical row, read in the same write: the seed's step 7."""

    trigger: Trigger
    ctx: Context = field(repr=False)
    grant: LockGrant
    lease: Lease
    conversation: Conversation

    def check(self, now: float) -> None:
        """Raises LeaseLost unless both the message and the lock are surely still ours."""
        self.ctx.raise_if_lost()
        self.lease.check(now)


@dataclass(frozen=True, slots=True)
class BatchedTurn:
    """Steps 4–6: what is answered together, in order and merged. `found`: how far an
    earlier attempt at this very batch came."""

    locked: LockedTurn
    fragments: tuple[Fragment, ...]
    text: str = field(repr=False)
    found: Outbox | None

    @property
    def sids(self) -> tuple[str, ...]:
        """Those of the reply that was found; it was written for these."""
        if self.found is not None:
            return self.found.sids
        return tuple(one.message_sid for one in self.fragments)


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """Steps 7–9: the reply is known, and written down. `parts` of it are out already;
    `doubt_since`: the next one may be, too."""

    batch: BatchedTurn
    answer: WriterAnswer
    thread_id: str
    parts: tuple[SentPart, ...] = ()
    doubt_since: float | None = None


@dataclass(frozen=True, slots=True)
class DeliveredTurn:
    """Step 10: every part of the reply is out."""

    written: WrittenTurn
    parts: tuple[SentPart, ...]


@dataclass(frozen=True, slots=True)
class StillTyping:
    """The customer is: wait on."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class EmptyBatch:
    """Nothing is staged that was not answered before."""
