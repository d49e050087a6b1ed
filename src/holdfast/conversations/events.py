"""Events of conversations, for subscribers such as logs and metrics.

As with all events, no field holds a body, a number, an address or a secret. `conversation` is
the id as `model.redact_id` returns it, and every reason is a text of Holdfast's own.
"""

from dataclasses import dataclass

from holdfast.core.events import Event


@dataclass(frozen=True, slots=True)
class ConversationEvent(Event):
    """An event of one conversation."""

    conversation: str


@dataclass(frozen=True, slots=True)
class FragmentStaged(ConversationEvent):
    """An inbound message is in the store."""

    channel: str
    new: bool  # False if it was staged before


@dataclass(frozen=True, slots=True)
class InboundRefused(Event):
    """An inbound message was refused, and nothing was stored."""

    reason: str


@dataclass(frozen=True, slots=True)
class WindowOpened(ConversationEvent):
    """A window is open, and its trigger is in the queue."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class WindowProlonged(ConversationEvent):
    """The customer is still typing, so the window ends later."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class LockBusy(ConversationEvent):
    """Another worker holds the lock; `own` if an earlier delivery of this trigger does."""

    own: bool


@dataclass(frozen=True, slots=True)
class LockTakenOver(ConversationEvent):
    """The previous holder of the lock left an unfinished reply behind."""

    outbox: str  # the state of that reply


@dataclass(frozen=True, slots=True)
class LockNotRenewed(ConversationEvent):
    """The keeper cannot start, so the batch has only the time until the lock's deadline."""

    error: str


@dataclass(frozen=True, slots=True)
class NothingStaged(ConversationEvent):
    """The trigger found no message, because all were answered or removed before."""


@dataclass(frozen=True, slots=True)
class BatchBegun(ConversationEvent):
    """A batch is fixed, and its reply is written next."""

    fragments: int


@dataclass(frozen=True, slots=True)
class ReplyWritten(ConversationEvent):
    """The writer returned a reply, and the store has it."""

    prompt_tokens: int
    completion_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplySent(ConversationEvent):
    """The provider accepted one part of the reply."""

    part: int
    of: int


@dataclass(frozen=True, slots=True)
class SendInDoubt(ConversationEvent):
    """It was unknown whether a part had been sent.

    `outcome` is `found` (the provider has it), `sent again` or `parked`.
    """

    outcome: str


@dataclass(frozen=True, slots=True)
class TurnFinished(ConversationEvent):
    """Both messages are in the history."""

    fragments: int


@dataclass(frozen=True, slots=True)
class SentNotRecorded(ConversationEvent):
    """The reply was sent, but the history could not be written. The trigger is retried."""

    error: str


@dataclass(frozen=True, slots=True)
class BatchFailed(ConversationEvent):
    """An attempt failed, and the batch is retried."""

    error: str


@dataclass(frozen=True, slots=True)
class BatchParked(ConversationEvent):
    """A batch waits for an operator; see `holdfast chat parked`."""

    fragments: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseFailed(ConversationEvent):
    """The lock could not be released, so it is free only when it expires."""

    error: str


@dataclass(frozen=True, slots=True)
class SweepFinished(Event):
    """The sweeper inspected every conversation that has staged messages."""

    waiting: int
    triggered: int
    parked: int
    oldest_seconds: float
