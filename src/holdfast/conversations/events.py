"""What happens to conversations, told to whoever subscribes: logs and metrics.

As with all events, nothing in here is a body, a number, an address or a secret:
`conversation` is what `model.shown` makes of the id, and every reason is in our own words.
"""

from dataclasses import dataclass

from holdfast.core.events import Event


@dataclass(frozen=True, slots=True)
class OfConversation(Event):
    conversation: str


@dataclass(frozen=True, slots=True)
class FragmentStaged(OfConversation):
    channel: str
    new: bool  # False: it was staged before


@dataclass(frozen=True, slots=True)
class InboundRefused(Event):
    """Nothing was stored."""

    reason: str


@dataclass(frozen=True, slots=True)
class WindowOpened(OfConversation):
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class WindowProlonged(OfConversation):
    """The customer is still typing."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class LockBusy(OfConversation):
    """Somebody else answers; `own` when an earlier delivery of this trigger does."""

    own: bool


@dataclass(frozen=True, slots=True)
class LockTakenOver(OfConversation):
    """Whoever had it did not come to an end."""

    outbox: str  # how far the reply was


@dataclass(frozen=True, slots=True)
class LockNotRenewed(OfConversation):
    """The keeper cannot start. The batch is answered as long as the lock lasts by itself."""

    error: str


@dataclass(frozen=True, slots=True)
class NothingStaged(OfConversation):
    """The trigger came for nothing: answered before, or cleaned up."""


@dataclass(frozen=True, slots=True)
class BatchBegun(OfConversation):
    fragments: int


@dataclass(frozen=True, slots=True)
class ReplyWritten(OfConversation):
    prompt_tokens: int
    completion_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplySent(OfConversation):
    part: int
    of: int


@dataclass(frozen=True, slots=True)
class SendInDoubt(OfConversation):
    """`found` by the provider, `sent again`, `parked`."""

    outcome: str


@dataclass(frozen=True, slots=True)
class TurnFinished(OfConversation):
    """Both messages are in the history."""

    fragments: int


@dataclass(frozen=True, slots=True)
class SentNotRecorded(OfConversation):
    """The reply is out, and the history could not be written. The trigger comes again."""

    error: str


@dataclass(frozen=True, slots=True)
class BatchFailed(OfConversation):
    """It is tried again."""

    error: str


@dataclass(frozen=True, slots=True)
class BatchParked(OfConversation):
    """A person must look: `holdfast chat parked`."""

    fragments: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseFailed(OfConversation):
    """The lock runs out by itself."""

    error: str


@dataclass(frozen=True, slots=True)
class Swept(Event):
    waiting: int
    triggered: int
    parked: int
    oldest_seconds: float
