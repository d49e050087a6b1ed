"""The state of a turn after each step: a step takes one of these and returns the next.

LockedTurn ─▶ BatchedTurn ─▶ WrittenTurn ─▶ … with all parts sent ─▶ a Turn of the history
"""

from dataclasses import dataclass, field

from holdfast.chat.messages import Trigger
from holdfast.chat.model import Conversation, Fragment, LockGrant
from holdfast.chat.outbox import Outbox, SentPart, WriterAnswer
from holdfast.lease.lease import Lease
from holdfast.worker.context import Context


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
