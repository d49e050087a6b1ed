"""The table of metrics: those of queues, attempts and leases, then those of each product.

Prometheus, OpenTelemetry and CloudWatch show the metrics of this table and no others, with the
values of `Measurements`.
"""

from collections.abc import Mapping
from typing import Any

from holdfast import events as ev
from holdfast.products import find_products, load_part
from holdfast.telemetry.metric import (
    Counter,
    Gauge,
    Histogram,
    Metric,
    MetricKind,
    Read,
    Reading,
)

# The reason of a loss or a kill is a text for people, with numbers and names in it. Each text
# of Holdfast's own begins in one of these ways.
_CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "timeout": ("timed out",),
    "stalled": ("stalled",),
    "capped": ("its cap",),
    "expired": ("no renewal was confirmed", "its deadline passed"),
    "taken": (
        "another worker took",
        "it was taken over",
        "the lease is gone",
        "lease of",
        "the conversation's lock was taken",
        "SQS does not accept the receipt",
    ),
    "stopped": ("the worker stop", "the invocation ended"),
    "unsettled": ("it could not be settled",),
    "unresponsive": (
        "the worker process did not answer",
        "it was cancelled and did not end",
        "its process cannot be killed",
    ),
    "invalid": ("its process sent an invalid frame",),
    "failed": ("the worker failed",),
}
OTHER = "other"


def categorize_reason(reason: str) -> str:
    """Return the category of the reason of a lost lease or a killed process."""
    for category, beginnings in _CATEGORIES.items():
        if reason.startswith(beginnings):
            return category
    return OTHER


# -- how an event is read if its fields alone do not say it


def _count_reason(event: Any) -> Reading:
    return (event.queue, categorize_reason(event.reason)), 1.0


def _count_outcome(outcome: str) -> Read:
    return lambda event: ((event.queue, outcome), 1.0)


def _read_depth(state: str) -> Read:
    return lambda event: ((event.queue, state), getattr(event, state))


def _read_oldest(event: ev.QueueMeasured) -> Reading:
    # An empty queue has no oldest message. Zero ends an alarm, a missing value would not.
    return (event.queue,), event.oldest_seconds or 0.0


# -- the table

_HOURS = 3600.0
_ATTEMPT_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900)
_LONG_SECONDS = (_HOURS, 4 * _HOURS, 12 * _HOURS)
_LATENESS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)

_QUEUE = ("queue",)
_STATES = ("ready", "delayed", "leased", "failed")
_TIMED = (ev.Completed, ev.Retried, ev.DeadLettered)

# These two change with time too, so Measurements computes them when they are read.
HELD = Gauge("held", "Leases that this process holds now.", labels=_QUEUE, unit="{lease}")
REDELIVERY = Gauge(
    "redelivery_seconds",
    "How long the last held message would wait for its next delivery if this process died now.",
    labels=_QUEUE,
    unit="s",
)

_ENGINE = (
    # -- queues
    Gauge(
        "queue.depth",
        "Messages in the queue, by state.",
        *((ev.QueueMeasured, _read_depth(state)) for state in _STATES),
        labels=("queue", "state"),
        unit="{message}",
    ),
    Gauge(
        "queue.oldest_seconds",
        "Age of the oldest message that is ready.",
        (ev.QueueMeasured, _read_oldest),
        unit="s",
    ),
    Counter("polls.failed", "Polls that failed.", ev.PollFailed),
    Counter("schema_too_new", "Messages left for newer code.", ev.SchemaTooNew),
    # -- attempts
    Counter("claimed", "Messages claimed from the queue.", ev.Claimed),
    Counter(
        "attempts",
        "Attempts that ended, by outcome.",
        (ev.Completed, _count_outcome("completed")),
        (ev.Retried, _count_outcome("retried")),
        (ev.DeadLettered, _count_outcome("dead_lettered")),
        (ev.GivenBack, _count_outcome("given_back")),
        (ev.MessageLeaseLost, _count_outcome("lost")),
        labels=("queue", "outcome"),
    ),
    Histogram(
        "attempt_seconds",
        "How long handlers took, whether they completed or failed.",
        *((kind, "seconds") for kind in _TIMED),
        unit="s",
        buckets=_ATTEMPT_SECONDS + _LONG_SECONDS,
    ),
    Counter(
        "children_killed",
        "Child processes killed by the watchdog, by reason.",
        (ev.ChildKilled, _count_reason),
        labels=("queue", "reason"),
    ),
    # -- leases
    HELD,
    REDELIVERY,
    Counter(
        "renewals",
        "Renewals of leases, by outcome.",
        (ev.LeaseRenewed, _count_outcome("renewed")),
        ev.RenewalFailed,
        labels=("queue", "outcome"),
    ),
    Histogram(
        "renewal_late_seconds",
        "How late renewals were.",
        (ev.LeaseRenewed, "late_seconds"),
        unit="s",
        buckets=_LATENESS,
    ),
    Counter("leases_at_risk", "Renewals and settlements without a response.", ev.LeaseAtRisk),
    Counter(
        "leases_lost",
        "Leases lost while this process held them, by reason.",
        (ev.MessageLeaseLost, _count_reason),
        labels=("queue", "reason"),
    ),
    Counter("taken_over", "Expired leases of other workers taken over.", ev.TakenOver),
)

METRICS: tuple[Metric, ...] = (
    *_ENGINE,
    *(metric for product in find_products() for metric in load_part(product.metrics)),
)
HISTOGRAMS = tuple(metric for metric in METRICS if metric.kind is MetricKind.HISTOGRAM)
