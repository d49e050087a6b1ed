"""Events: one value per state transition. Logging and metrics subscribe to them.

No event carries a body, a receipt, a token or the text of a handler's error, so a subscriber
may print any event. The queue stores that text with the message, where `holdfast explain`
shows it. No component depends on a subscriber.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

_log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events."""


@dataclass(frozen=True, slots=True)
class QueueEvent(Event):
    """An event of one queue."""

    queue: str


@dataclass(frozen=True, slots=True)
class MessageEvent(QueueEvent):
    """An event of one attempt at one message."""

    message_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Claimed(MessageEvent):
    """A worker claimed the message and now holds its lease."""


@dataclass(frozen=True, slots=True)
class Completed(MessageEvent):
    """The handler finished and the message was acked. `seconds` is the attempt's duration."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Retried(MessageEvent):
    """The attempt failed and will be repeated. No delay means the queue's backoff decides."""

    delay_seconds: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLettered(MessageEvent):
    """The message was dead-lettered: rejected, out of attempts, or malformed."""

    reason: str


@dataclass(frozen=True, slots=True)
class GivenBack(MessageEvent):
    """The message was returned unstarted or unfinished, usually at shutdown.

    The attempt is not charged, if the queue can refund it."""


@dataclass(frozen=True, slots=True)
class LeaseAtRisk(MessageEvent):
    """A renewal or a settlement got no response. `left_seconds` remain to repeat it."""

    error: str
    left_seconds: float


@dataclass(frozen=True, slots=True)
class LeaseRenewed(MessageEvent):
    """The lease was renewed, `late_seconds` after the renewal was due."""

    late_seconds: float


@dataclass(frozen=True, slots=True)
class MessageLeaseLost(MessageEvent):
    """This process lost a lease that it held."""

    reason: str


@dataclass(frozen=True, slots=True)
class NearCap(MessageEvent):
    """The queue will soon stop extending this lease, so the handler should checkpoint now."""

    left_seconds: float


@dataclass(frozen=True, slots=True)
class TakenOver(MessageEvent):
    """This worker took over a message whose lease at another worker had run out."""

    from_worker: str


@dataclass(frozen=True, slots=True)
class SchemaTooNew(MessageEvent):
    """The message was written by newer code and was left for newer workers."""

    version: int


@dataclass(frozen=True, slots=True)
class ChildKilled(MessageEvent):
    """The watchdog killed a child process."""

    reason: str
    pid: int


@dataclass(frozen=True, slots=True)
class CheckpointNotKept(MessageEvent):
    """This queue cannot store checkpoints, so the next attempt starts from the beginning.

    Emitted once."""


@dataclass(frozen=True, slots=True)
class WorkerStarted(QueueEvent):
    """A worker began a run."""

    concurrency: int
    isolation: str


@dataclass(frozen=True, slots=True)
class WorkerStopping(QueueEvent):
    """A worker stopped polling, with `running` messages still being handled."""

    running: int


@dataclass(frozen=True, slots=True)
class WorkerStopped(QueueEvent):
    """A run ended. `abandoned` messages come back when their leases run out."""

    abandoned: int


@dataclass(frozen=True, slots=True)
class PollFailed(QueueEvent):
    """A poll failed, or a child process could not be started. The worker will retry."""

    error: str


Subscriber = Callable[[Event], None]


class Events:
    """Passes each event to every subscriber, in the thread that emits it."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = subscribers
        self.has_subscribers = bool(subscribers)
        """Whether an event would reach a subscriber. A hot path can skip building it if not."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """Pass all later events to `subscriber` too."""
        self._subscribers = (*self._subscribers, subscriber)
        self.has_subscribers = True

    def emit(self, event: Event) -> None:
        """Call every subscriber. An exception is logged and does not reach the caller."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # a broken metric must not fail a message
                _log.exception("event subscriber failed on %s", type(event).__name__)
