"""The table of metrics: the name of each, and how events change it.

Prometheus, OpenTelemetry and CloudWatch show the metrics of this table and no others, with the
values of `Measurements`. The names with dots are those of OpenTelemetry and CloudWatch:

    table            heartbeat.sent                   attempt_seconds
    Prometheus       holdfast_heartbeat_sent_total    holdfast_attempt_seconds
    OpenTelemetry    holdfast.heartbeat.sent          holdfast.attempt_seconds
    CloudWatch       heartbeat.sent.total             attempt_seconds
"""

from collections.abc import Iterable
from typing import Any

from holdfast.adapters.observe.metric import (
    Metric,
    MetricKind,
    Read,
    Reading,
    categorize_reason,
)
from holdfast.conversations import events as cv
from holdfast.core import events as ev
from holdfast.core.events import Event
from holdfast.jobs import events as jv

# -- how an event is read


def _count(event: Event) -> Reading:
    return (), 1.0


def _count_by_queue(event: ev.QueueEvent) -> Reading:
    return (event.queue,), 1.0


def _count_outcome(outcome: str) -> Read:
    return lambda event: ((event.queue, outcome), 1.0)


def _count_by_field(name: str) -> Read:
    return lambda event: ((str(getattr(event, name)),), 1.0)


def _count_reason(event: Any) -> Reading:
    return (event.queue, categorize_reason(event.reason)), 1.0


def _read_field(name: str) -> Read:
    return lambda event: ((), getattr(event, name))


def _read_seconds(event: Any) -> Reading | None:
    return None if event.seconds is None else ((event.queue,), event.seconds)


def _read_milliseconds(event: Any) -> Reading:
    return (), event.seconds * 1000


def _read_depth(state: str) -> Read:
    return lambda event: ((event.queue, state), getattr(event, state))


def _read_oldest(event: ev.QueueMeasured) -> Reading:
    # An empty queue has no oldest message. Zero ends an alarm, a missing value would not.
    return (event.queue,), event.oldest_seconds or 0.0


def _count_tokens(kind: str) -> Read:
    return lambda event: ((kind,), getattr(event, f"{kind}_tokens"))


# -- the table

_HOURS = 3600.0
_ATTEMPT_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900)
_LONG_SECONDS = (_HOURS, 4 * _HOURS, 12 * _HOURS)
_LATENESS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)
_HEARTBEAT_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
_WRITER_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)

_QUEUE = ("queue",)


def _counter(name: str, text: str, *kinds: type[Event], unit: str = "{event}") -> Metric:
    """Return a counter of events. Those of queues have the queue as their label."""
    by_queue = issubclass(kinds[0], ev.QueueEvent)
    sources = tuple((kind, _count_by_queue if by_queue else _count) for kind in kinds)
    labels = _QUEUE if by_queue else ()
    return Metric(name, MetricKind.COUNTER, unit, text, labels, sources)


def _labelled_counter(
    name: str, text: str, labels: Iterable[str], *sources: tuple[type[Event], Read]
) -> Metric:
    return Metric(name, MetricKind.COUNTER, "{event}", text, tuple(labels), sources)


def _gauge(name: str, unit: str, text: str, kind: type[Event], field: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, unit, text, (), ((kind, _read_field(field)),))


# These two change with time too, so Measurements computes them when they are read.
HELD = Metric(
    "held", MetricKind.GAUGE, "{lease}", "Leases that this process holds now.", _QUEUE
)
REDELIVERY = Metric(
    "redelivery_seconds",
    MetricKind.GAUGE,
    "s",
    "How long the last held message would wait for its next delivery if this process died now.",
    _QUEUE,
)

METRICS: tuple[Metric, ...] = (
    # -- queues
    Metric(
        "queue.depth",
        MetricKind.GAUGE,
        "{message}",
        "Messages in the queue, by state.",
        ("queue", "state"),
        tuple(
            (ev.QueueMeasured, _read_depth(state))
            for state in ("ready", "delayed", "leased", "failed")
        ),
    ),
    Metric(
        "queue.oldest_seconds",
        MetricKind.GAUGE,
        "s",
        "Age of the oldest message that is ready.",
        _QUEUE,
        ((ev.QueueMeasured, _read_oldest),),
    ),
    _counter("polls.failed", "Polls that failed.", ev.PollFailed),
    _counter("schema_too_new", "Messages left for newer code.", ev.SchemaTooNew),
    # -- attempts
    _counter("claimed", "Messages claimed from the queue.", ev.Claimed),
    _labelled_counter(
        "attempts",
        "Attempts that ended, by outcome.",
        ("queue", "outcome"),
        (ev.Completed, _count_outcome("completed")),
        (ev.Retried, _count_outcome("retried")),
        (ev.DeadLettered, _count_outcome("dead_lettered")),
        (ev.GivenBack, _count_outcome("given_back")),
        (ev.MessageLeaseLost, _count_outcome("lost")),
    ),
    Metric(
        "attempt_seconds",
        MetricKind.HISTOGRAM,
        "s",
        "How long handlers took, whether they completed or failed.",
        _QUEUE,
        tuple((kind, _read_seconds) for kind in (ev.Completed, ev.Retried, ev.DeadLettered)),
        _ATTEMPT_SECONDS + _LONG_SECONDS,
    ),
    _labelled_counter(
        "children_killed",
        "Child processes killed by the watchdog, by reason.",
        ("queue", "reason"),
        (ev.ChildKilled, _count_reason),
    ),
    # -- leases
    HELD,
    REDELIVERY,
    _labelled_counter(
        "renewals",
        "Renewals of leases, by outcome.",
        ("queue", "outcome"),
        (ev.LeaseRenewed, _count_outcome("renewed")),
        (ev.RenewalFailed, lambda event: ((event.queue, event.outcome), 1.0)),
    ),
    Metric(
        "renewal_late_seconds",
        MetricKind.HISTOGRAM,
        "s",
        "How late renewals were.",
        _QUEUE,
        ((ev.LeaseRenewed, lambda event: ((event.queue,), event.late_seconds)),),
        _LATENESS,
    ),
    _counter("leases_at_risk", "Renewals and settlements without a response.", ev.LeaseAtRisk),
    _labelled_counter(
        "leases_lost",
        "Leases lost while this process held them, by reason.",
        ("queue", "reason"),
        (ev.MessageLeaseLost, _count_reason),
    ),
    _counter("taken_over", "Expired leases of other workers taken over.", ev.TakenOver),
    # -- heartbeats
    _counter(
        "heartbeat.sent",
        "Heartbeats sent, with any result.",
        jv.HeartbeatSent,
        jv.HeartbeatFailed,
    ),
    _counter("heartbeat.success", "Heartbeats that Step Functions accepted.", jv.HeartbeatSent),
    _counter(
        "heartbeat.failure", "Heartbeats refused or without a response.", jv.HeartbeatFailed
    ),
    Metric(
        "heartbeat.duration.ms",
        MetricKind.HISTOGRAM,
        "ms",
        "Duration of heartbeats in milliseconds.",
        (),
        ((jv.HeartbeatSent, _read_milliseconds), (jv.HeartbeatFailed, _read_milliseconds)),
        _HEARTBEAT_MS,
    ),
    _counter(
        "stepfunctions.timeout",
        "Active jobs that Step Functions timed out.",
        jv.StepFunctionsTimedOut,
    ),
    # -- jobs
    _gauge(
        "jobs.active.with_token",
        "{job}",
        "Active jobs that need heartbeats.",
        jv.ActiveJobs,
        "with_token",
    ),
    _gauge(
        "jobs.active.without_token",
        "{job}",
        "Active jobs without a task token.",
        jv.ActiveJobs,
        "without_token",
    ),
    _counter(
        "active_jobs_unknown",
        "Listings without a response of the job store.",
        jv.ActiveJobsUnknown,
    ),
    _counter("jobs.started", "Jobs received for the first time.", jv.JobStarted),
    _counter("jobs.resumed", "Jobs received again.", jv.JobResumed),
    _counter("jobs.stalled", "Jobs found without progress, once per cycle.", jv.JobStalled),
    _counter(
        "jobs.cancelled", "Jobs whose execution no longer waits for them.", jv.JobCancelled
    ),
    _labelled_counter(
        "jobs.finished",
        "Finished jobs by status.",
        ("status",),
        (jv.JobFinished, _count_by_field("status")),
    ),
    _counter("tasks.completed", "Tasks completed.", jv.TaskCompleted),
    _counter("tasks.failed", "Tasks that failed for good.", jv.TaskFailed),
    _counter("tasks.again", "Tasks given to another worker.", jv.TaskRetried),
    _counter("callbacks.sent", "Callbacks that Step Functions accepted.", jv.CallbackSent),
    _counter("callbacks.failed", "Callbacks that will be repeated.", jv.CallbackFailed),
    _counter("pool_workers.started", "Worker processes started.", jv.PoolWorkerStarted),
    _counter(
        "pool_workers.ended", "Worker processes that ended or were killed.", jv.PoolWorkerEnded
    ),
    # -- conversations
    _labelled_counter(
        "chat.staged",
        "Inbound messages staged, once each.",
        ("channel",),
        (cv.FragmentStaged, lambda event: ((event.channel,), 1.0) if event.new else None),
    ),
    _counter("chat.refused", "Inbound messages that could not be answered.", cv.InboundRefused),
    _counter(
        "chat.prolonged",
        "Windows kept open because the customer was typing.",
        cv.WindowProlonged,
    ),
    _counter("chat.busy", "Triggers of a conversation that is being answered.", cv.LockBusy),
    _counter(
        "chat.taken_over", "Expired locks taken over from another worker.", cv.LockTakenOver
    ),
    _counter(
        "chat.turns", "Batches answered, with reply and history written.", cv.TurnFinished
    ),
    _counter("chat.retries", "Batches that will be tried again.", cv.BatchFailed),
    _counter("chat.parked", "Batches parked for an operator.", cv.BatchParked),
    _labelled_counter(
        "chat.in_doubt",
        "Replies of which it was unknown whether they were sent, by outcome.",
        ("outcome",),
        (cv.SendInDoubt, _count_by_field("outcome")),
    ),
    _counter(
        "chat.unrecorded",
        "Replies sent whose history could not be written.",
        cv.SentNotRecorded,
    ),
    _labelled_counter(
        "chat.tokens",
        "Tokens used for replies.",
        ("kind",),
        (cv.ReplyWritten, _count_tokens("prompt")),
        (cv.ReplyWritten, _count_tokens("completion")),
    ),
    Metric(
        "chat.writer_seconds",
        MetricKind.HISTOGRAM,
        "s",
        "Duration of writing replies.",
        (),
        ((cv.ReplyWritten, _read_field("seconds")),),
        _WRITER_SECONDS,
    ),
    _gauge(
        "chat.waiting",
        "{conversation}",
        "Conversations with staged messages.",
        cv.SweepFinished,
        "waiting",
    ),
    _gauge(
        "chat.oldest_seconds",
        "s",
        "Age of the oldest of them.",
        cv.SweepFinished,
        "oldest_seconds",
    ),
)
