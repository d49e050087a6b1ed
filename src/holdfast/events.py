"""Events: one value per state transition. Logging and metrics subscribe to them.

No field of an event holds a body, a receipt, a token or the text of a handler's error, so a
subscriber may print any event. A failed attempt also carries its `exception`, whose
text may quote the message. It is not a field, so it is not printed, compared or pickled. No
component depends on a subscriber.
"""

from __future__ import annotations  # keeps annotations as text, which costs nothing

import logging
from collections.abc import Callable, Mapping
from dataclasses import Field, FrozenInstanceError, make_dataclass
from functools import cache
from inspect import get_annotations
from logging import DEBUG, ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any, dataclass_transform

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.chat.events import *  # noqa: F403
    from holdfast.exports.events import *  # noqa: F403
    from holdfast.queue.event_log import EventLog as EventLog

_log = logging.getLogger("holdfast")


@dataclass_transform(frozen_default=True)
class _EventType(type):
    """Makes a value type of a class with annotated fields, fifty times faster than dataclass.

    A process that starts defines some seventy events, and uses a few of them.
    """

    __match_args__: tuple[str, ...]
    attached: tuple[str, ...]  # optional values that are not fields: those with a default
    setters: tuple[Callable[[Any, Any], None], ...]  # of the slots; faster than by name
    level: int
    """The level of such events in logs, as the logging module numbers it."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        level: int | None = None,
    ) -> _EventType:
        own = tuple(namespace.get("__annotations__", ()))
        # The default of an attachment is None. A slot cannot have one.
        attached = tuple(field for field in own if namespace.pop(field, own) is None)
        fields: tuple[str, ...] = getattr(bases[0], "__match_args__", ()) if bases else ()
        fields += tuple(field for field in own if field not in attached)
        namespace |= {"__slots__": own, "__match_args__": fields}
        kind = super().__new__(mcs, name, bases, namespace)
        kind.attached = attached
        kind.setters = tuple(getattr(kind, field).__set__ for field in fields + attached)
        if level is not None:
            kind.level = level
        return kind


@cache
def _make_dataclass_fields(kind: type[Event]) -> Mapping[str, Field[Any]]:
    annotations = {
        name: text
        for base in reversed(kind.__mro__)
        for name, text in get_annotations(base).items()
        if name in kind.__match_args__
    }
    fields = make_dataclass(kind.__name__, annotations.items())
    return fields.__dataclass_fields__  # type: ignore[attr-defined,no-any-return]


class _DataclassFields:
    """The descriptor that lets dataclasses.fields, asdict and replace work with events."""

    def __get__(self, event: Event | None, kind: type[Event]) -> Mapping[str, Field[Any]]:
        return _make_dataclass_fields(kind)


class Event(metaclass=_EventType, level=INFO):
    """The base of all events. An event is an immutable value, as a frozen dataclass is.

    A subclass declares its fields by annotations, and its log level as `level=`. An annotation
    with the default None declares an attachment, which only attribute access shows.
    """

    __dataclass_fields__ = _DataclassFields()

    def __init__(self, *args: Any, **named: Any) -> None:
        setters = type(self).setters
        if named or len(args) != len(setters):
            args = self._order_arguments(args, named)
        for set_field, value in zip(setters, args, strict=True):
            set_field(self, value)

    def _order_arguments(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        attached = type(self).attached
        names = type(self).__match_args__ + attached
        later = names[len(args) :]
        given = {name: None for name in attached if name in later} | named
        if set(later) != set(given) or len(args) + len(given) != len(names):
            raise TypeError(f"{type(self).__name__} takes exactly: {', '.join(names)}")
        return args + tuple(given[name] for name in later)

    def get_level(self) -> int:
        """Return the level of this event in logs."""
        return type(self).level

    def get_fields(self) -> dict[str, Any]:
        """Return the values of the fields by name."""
        return {name: getattr(self, name) for name in type(self).__match_args__}

    def __repr__(self) -> str:
        pairs = (f"{name}={value!r}" for name, value in self.get_fields().items())
        return f"{type(self).__qualname__}({', '.join(pairs)})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.get_fields() == other.get_fields()

    def __hash__(self) -> int:
        return hash((type(self), *self.get_fields().values()))

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.get_fields().values())


class QueueEvent(Event):
    """An event of one queue."""

    queue: str


class MessageEvent(QueueEvent):
    """An event of one attempt at one message."""

    message_id: str
    attempt: int


class Claimed(MessageEvent):
    """A worker claimed the message and now holds its lease until `deadline` (monotonic)."""

    deadline: float | None = None


class Completed(MessageEvent):
    """The handler finished and the message was acked. `seconds` is the attempt's duration."""

    seconds: float


class Retried(MessageEvent, level=WARNING):
    """The attempt failed and will be repeated. No delay means the queue's backoff decides.

    `exception` is what the handler raised. For an attempt in a child process, or one that
    Holdfast ended, it is an AttemptFailed. It is None if the handler asked for the retry.
    `seconds` is the attempt's duration."""

    delay_seconds: float | None
    reason: str
    exception: BaseException | None = None
    seconds: float | None = None


class DeadLettered(MessageEvent, level=ERROR):
    """The message was dead-lettered: rejected, out of attempts, or malformed.

    `exception` and `seconds` are those of the last attempt, as for Retried. Both are None if
    the queue itself dead-lettered the message, because no handler ran."""

    reason: str
    exception: BaseException | None = None
    seconds: float | None = None


class GivenBack(MessageEvent):
    """The message was returned unstarted or unfinished, usually at shutdown.

    The attempt is not charged, if the queue can refund it."""


class LeaseAtRisk(MessageEvent, level=WARNING):
    """A renewal or a settlement got no response. `left_seconds` remain to repeat it."""

    error: str
    left_seconds: float


class LeaseRenewed(MessageEvent, level=DEBUG):
    """The lease was renewed until `deadline` (monotonic), `late_seconds` after it was due."""

    late_seconds: float
    deadline: float | None = None


class RenewalFailed(MessageEvent, level=DEBUG):
    """A renewal failed. LeaseAtRisk or MessageLeaseLost says what follows from it.

    `outcome` is `unanswered`, `refused`, or `late` (confirmed after the deadline).
    """

    outcome: str


class MessageLeaseLost(MessageEvent, level=WARNING):
    """This process lost a lease that it held."""

    reason: str


class NearCap(MessageEvent, level=WARNING):
    """The queue will soon stop extending this lease, so the handler should checkpoint now."""

    left_seconds: float


class TakenOver(MessageEvent, level=WARNING):
    """This worker took over a message whose lease at another worker had run out."""

    from_worker: str


class SchemaTooNew(MessageEvent, level=WARNING):
    """The message has a newer version or unknown fields, and was left for newer workers."""

    version: int


class ChildKilled(MessageEvent, level=WARNING):
    """The watchdog killed a child process."""

    reason: str
    pid: int


class CheckpointNotKept(MessageEvent, level=WARNING):
    """This queue cannot store checkpoints, so the next attempt starts from the beginning.

    Emitted once."""


class ResultNotKept(MessageEvent, level=WARNING):
    """The value that a task returned is not kept. Emitted once for each task and run."""

    task: str
    reason: str


END_EVENTS = (Completed, Retried, DeadLettered, GivenBack, MessageLeaseLost)
"""The events after which a worker no longer holds the message."""


class QueueMeasured(QueueEvent, level=DEBUG):
    """The counts of a queue, and the age of its oldest message that is ready, if known."""

    ready: int
    delayed: int
    leased: int
    failed: int
    oldest_seconds: float | None


class WorkerStarted(QueueEvent):
    """A worker began a run."""

    concurrency: int
    isolation: str


class WorkerStopping(QueueEvent):
    """A worker stopped polling, with `running` messages still being handled."""

    running: int


class WorkerStopped(QueueEvent):
    """A run ended. `abandoned` messages come back when their leases run out."""

    abandoned: int


class PollFailed(QueueEvent, level=WARNING):
    """A poll failed, or a child process could not be started. The worker will retry."""

    error: str


Subscriber = Callable[[Event], None]

OnError = Callable[[BaseException, Retried | DeadLettered], object]
"""Called with the exception of a failed attempt, and the event that says what follows."""


class Events:
    """Passes each event to every subscriber, in the thread that emits it."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = subscribers
        self.has_subscribers = bool(subscribers)
        """Whether an ordinary event would reach a subscriber. If not, a hot path need not
        build an event whose level is INFO or below."""

    def subscribe(self, subscriber: Subscriber) -> None:
        """Pass all later events to `subscriber` too."""
        self._subscribers = (*self._subscribers, subscriber)
        self.has_subscribers = True

    def flush(self) -> None:
        """Let the subscribers that collect events before they write them write now.

        An exception is logged and does not reach the caller.
        """
        for subscriber in self._subscribers:
            flush: Callable[[], object] | None = getattr(subscriber, "flush", None)
            try:
                if flush is not None:
                    flush()
            except Exception:  # as for emit
                _log.exception("event subscriber failed to flush")

    def emit(self, event: Event) -> None:
        """Call every subscriber. An exception is logged and does not reach the caller."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # a broken metric must not fail a message
                _log.exception("event subscriber failed on %s", type(event).__name__)


def add_error_callback(events: Events, on_error: OnError | None) -> Events:
    """Return events that also call `on_error` for each attempt that has an exception.

    The given events do not call it, because other workers may use them.
    """
    if on_error is None:
        return events

    def call_on_error(event: Event) -> None:
        if isinstance(event, Retried | DeadLettered) and event.exception is not None:
            on_error(event.exception, event)

    return Events(events.emit, call_on_error)


# What the products report, and the log, which need not be loaded for the engine.
_lazy_names, __getattr__ = lazy_exports(
    __name__,
    {
        "chat.events": "BatchBegun BatchFailed BatchParked ConversationEvent FragmentStaged "
        "InboundRefused LockBusy LockNotRenewed LockTakenOver NothingStaged ReleaseFailed "
        "ReplySent ReplyWritten SendInDoubt SentNotRecorded SweepFinished TurnFinished "
        "WebhookFailed WebhookRefused WindowOpened WindowProlonged",
        "exports.events": "ActiveJobs ActiveJobsUnknown CallbackFailed CallbackSent "
        "HeartbeatFailed HeartbeatSent IntervalTight JobCancelled JobEvent JobFinished "
        "JobNotReconciled JobResumed JobSealed JobStalled JobStarted OrchestratorDisabled "
        "OrchestratorStarted OrchestratorStopped OrchestratorStopping PoolWorkerEnded "
        "PoolWorkerStarted StepFunctionsTimedOut TaskCompleted TaskFailed TaskRetried",
        "queue.event_log": "EventLog",
    },
)
if not TYPE_CHECKING:  # without it, type checkers see all names that this module has
    _own_names = [name for name, value in vars().items() if isinstance(value, _EventType)]
    __all__ = sorted([*_lazy_names, *_own_names, "Events", "OnError"])
