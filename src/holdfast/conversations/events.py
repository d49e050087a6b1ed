"""What happens to conversations, told to whoever subscribes: logs and metrics.

As with all events, nothing in here is a body, a number, an address or a secret:
`conversation` is what `model.shown` makes of the id, and every reason is in our own words.
"""

from dataclasses import dataclass

from holdfast.core.events import Event


@dataclass(frozen=True, slots=True)
class ConversationEvent(Event):
    conversation: str


@dataclass(frozen=True, slots=True)
class FragmentStaged(ConversationEvent):
    channel: str
    new: bool  # False: it was staged before


@dataclass(frozen=True, slots=True)
class InboundRefused(Event):
    """Nothing was stored."""

    reason: str


@dataclass(frozen=True, slots=True)
class WindowOpened(ConversationEvent):
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class WindowProlonged(ConversationEvent):
    """The customer is still typing."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class LockBusy(ConversationEvent):
    """Somebody else answers; `own` when an earlier delivery of this trigger does."""

    own: bool


@dataclass(frozen=True, slots=True)
class LockTakenOver(ConversationEvent):
    """Whoever had it did not come to an end."""

    outbox: str  # how far the reply was


@dataclass(frozen=True, slots=True)
class LockNotRenewed(ConversationEvent):
    """The keeper cannot start. The batch is answered as long as the lock lasts by itself."""

    error: str


@dataclass(frozen=True, slots=True)
class NothingStaged(ConversationEvent):
    """The trigger came for nothing: answered before, or cleaned up."""


@dataclass(frozen=True, slots=True)
class BatchBegun(ConversationEvent):
    fragments: int


@dataclass(frozen=True, slots=True)
class ReplyWritten(ConversationEvent):
    prompt_tokens: int
    completion_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplySent(ConversationEvent):
    part: int
    of: int


@dataclass(frozen=True, slots=True)
class SendInDoubt(ConversationEvent):
    """`found` by the provider, `sent again`, `parked`."""

    outcome: str


@dataclass(frozen=True, slots=True)
class TurnFinished(ConversationEvent):
    """Both messages are in the history."""

    fragments: int


@dataclass(frozen=True, slots=True)
class SentNotRecorded(ConversationEvent):
    """The reply is out, and the history could not be written. The trigger comes again."""

    error: str


@dataclass(frozen=True, slots=True)
class BatchFailed(ConversationEvent):
    """It is tried again."""

    error: str


@dataclass(frozen=True, slots=True)
class BatchParked(ConversationEvent):
    """A person must look: `holdfast chat parked`."""

    fragments: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseFailed(ConversationEvent):
    """The lock runs out by itself."""

    error: str


@dataclass(frozen=True, slots=True)
class SweepFinished(Event):
    waiting: int
    triggered: int
    parked: int
    oldest_seconds: float
