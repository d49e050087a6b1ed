"""Events: one value per transition. Logging and metrics subscribe; nothing depends on them.

No event carries a body, a receipt, a token or the text of a handler's error, so a subscriber
can print any of them. (The queue keeps that text with the message: `holdfast explain`.)
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened."""


@dataclass(frozen=True, slots=True)
class QueueEvent(Event):
    queue: str


@dataclass(frozen=True, slots=True)
class MessageEvent(QueueEvent):
    message_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Claimed(MessageEvent):
    """A worker holds the message now."""


@dataclass(frozen=True, slots=True)
class Completed(MessageEvent):
    seconds: float


@dataclass(frozen=True, slots=True)
class Retried(MessageEvent):
    delay_seconds: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLettered(MessageEvent):
    reason: str


@dataclass(frozen=True, slots=True)
class GivenBack(MessageEvent):
    """Returned unstarted or unfinished at shutdown; the attempt was not charged."""


@dataclass(frozen=True, slots=True)
class LeaseAtRisk(MessageEvent):
    error: str
    left_seconds: float


@dataclass(frozen=True, slots=True)
class LeaseRenewed(MessageEvent):
    late_seconds: float


@dataclass(frozen=True, slots=True)
class MessageLeaseLost(MessageEvent):
    """The lease was lost while it was held here."""

    reason: str


@dataclass(frozen=True, slots=True)
class NearCap(MessageEvent):
    """The queue will not extend this lease much further: checkpoint now."""

    left_seconds: float


@dataclass(frozen=True, slots=True)
class TakenOver(MessageEvent):
    """A worker took over an expired lease of another worker."""

    from_worker: str


@dataclass(frozen=True, slots=True)
class SchemaTooNew(MessageEvent):
    version: int


@dataclass(frozen=True, slots=True)
class ChildKilled(MessageEvent):
    reason: str
    pid: int


@dataclass(frozen=True, slots=True)
class CheckpointNotKept(MessageEvent):
    """This queue has no place for checkpoints: the next attempt begins anew. Told once."""


@dataclass(frozen=True, slots=True)
class WorkerStarted(QueueEvent):
    concurrency: int
    isolation: str


@dataclass(frozen=True, slots=True)
class WorkerStopping(QueueEvent):
    running: int


@dataclass(frozen=True, slots=True)
class WorkerStopped(QueueEvent):
    abandoned: int


@dataclass(frozen=True, slots=True)
class PollFailed(QueueEvent):
    error: str


Subscriber = Callable[[Event], None]


class Events:
    """Hands each event to every subscriber, in the emitting thread."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = subscribers

    @property
    def listening(self) -> bool:
        """False lets a hot path skip building an event nobody wants."""
        return bool(self._subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers = (*self._subscribers, subscriber)

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # a broken metric must never cost a message
                _log.exception("event subscriber failed on %s", type(event).__name__)
