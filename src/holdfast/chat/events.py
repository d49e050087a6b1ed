"""Events of conversations, for subscribers such as logs and metrics.

As with all events, no field holds a body, a number, an address or a secret. `conversation` is
the id as `model.redact_id` returns it, and every reason is a text of Holdfast's own.
"""

from __future__ import annotations  # keeps annotations as text, which costs nothing

from logging import CRITICAL, DEBUG, ERROR, WARNING

from holdfast.events import Event


class ConversationEvent(Event):
    """An event of one conversation."""

    conversation: str


class FragmentStaged(ConversationEvent):
    """An inbound message is in the store."""

    channel: str
    new: bool  # False if it was staged before


class InboundRefused(Event, level=WARNING):
    """An inbound message was refused, and nothing was stored."""

    reason: str


class WebhookRefused(Event, level=WARNING):
    """The webhook refused a request, and nothing was stored.

    `reason` is `method`, `malformed`, `signature` or `unanswerable`. It is `unsigned` if the
    request has no signature of Twilio's form, whatever else is wrong with it.
    """

    reason: str
    detail: str


class WebhookFailed(Event, level=ERROR):
    """The webhook answered 503, so the message is lost unless a fallback URL takes it.

    `reason` is `configuration`, `secret_unavailable`, `store_unavailable`,
    `queue_unavailable` or `unexpected`.
    """

    reason: str
    error: str


class WindowOpened(ConversationEvent):
    """A window is open, and its trigger is in the queue."""

    delay_seconds: float


class WindowProlonged(ConversationEvent):
    """The customer is still typing, so the window ends later."""

    delay_seconds: float


class LockBusy(ConversationEvent, level=WARNING):
    """Another worker holds the lock; `own` if an earlier delivery of this trigger does."""

    own: bool


class LockTakenOver(ConversationEvent, level=WARNING):
    """The previous holder of the lock left an unfinished reply behind."""

    outbox: str  # the state of that reply


class LockNotRenewed(ConversationEvent, level=ERROR):
    """The keeper cannot start, so the batch has only the time until the lock's deadline."""

    error: str


class NothingStaged(ConversationEvent, level=WARNING):
    """The trigger found no message, because all were answered or removed before."""


class BatchBegun(ConversationEvent):
    """A batch is fixed, and its reply is written next."""

    fragments: int


class ReplyWritten(ConversationEvent):
    """The writer returned a reply, and the store has it."""

    prompt_tokens: int
    completion_tokens: int
    seconds: float


class ReplySent(ConversationEvent):
    """The provider accepted one part of the reply."""

    part: int
    of: int


class SendInDoubt(ConversationEvent, level=WARNING):
    """It was unknown whether a part had been sent.

    `outcome` is `found` (the provider has it), `sent again` or `parked`.
    """

    outcome: str


class TurnFinished(ConversationEvent):
    """Both messages are in the history."""

    fragments: int


class SentNotRecorded(ConversationEvent, level=CRITICAL):
    """The reply was sent, but the history could not be written. The trigger is retried."""

    error: str


class BatchFailed(ConversationEvent, level=WARNING):
    """An attempt failed, and the batch is retried."""

    error: str


class BatchParked(ConversationEvent, level=ERROR):
    """A batch waits for an operator; see `holdfast chat parked`."""

    fragments: int
    reason: str


class ReleaseFailed(ConversationEvent, level=WARNING):
    """The lock could not be released, so it is free only when it expires."""

    error: str


class SweepFinished(Event):
    """The sweeper inspected every conversation that has staged messages."""

    waiting: int
    triggered: int
    parked: int
    oldest_seconds: float

    def get_level(self) -> int:
        """Return DEBUG if there was nothing to do."""
        return DEBUG if self.triggered == self.parked == 0 else super().get_level()
