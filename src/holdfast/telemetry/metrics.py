"""The table of metrics: those of queues, attempts and leases, then those of each product.

Prometheus, OpenTelemetry and CloudWatch show the metrics of this table and no others, with the
values of `Measurements`. The names with dots are those of OpenTelemetry and CloudWatch:

    table            heartbeat.sent                   attempt_seconds
    Prometheus       holdfast_heartbeat_sent_total    holdfast_attempt_seconds
    OpenTelemetry    holdfast.heartbeat.sent          holdfast.attempt_seconds
    CloudWatch       heartbeat.sent.total             attempt_seconds
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from threading import Lock
from typing import Any

from holdfast import events as ev
from holdfast.events import Event, QueueEvent
from holdfast.products import find_products, load_part

Labels = tuple[str, ...]
Reading = tuple[Labels, float]
"""The values of a metric's labels, and the number to add, to set or to observe."""

Read = Callable[[Any], Reading | None]
"""Returns the reading of an event, or None if this event does not change the metric."""

Source = type[Event] | tuple[type[Event], str | Read]
"""Events that change a metric: each by one, by a field of this name, or as read."""


class Metric:
    """One metric. `sources` says which events change it, and how.

    A label is the field of the same name of the event, unless a function reads it. Without
    `labels`, events of queues have the label `queue`, and others have none.
    """

    def __init__(
        self,
        name: str,
        text: str,
        *sources: Source,
        labels: Labels | None = None,
        unit: str = "",
        buckets: tuple[float, ...] = (),
    ) -> None:
        pairs = [source if isinstance(source, tuple) else (source, None) for source in sources]
        if labels is None:
            labels = ("queue",) if issubclass(pairs[0][0], QueueEvent) else ()
        self.name, self.text, self.labels = name, text, labels
        self.prometheus_name = f"holdfast_{name.replace('.', '_')}"  # a counter adds _total
        self.otel_name = f"holdfast.{name}"
        # As the alarms of heartbeats have it.
        self.cloudwatch_name = f"{name}.total" if isinstance(self, Counter) else name
        # As UCUM writes it: s, ms, or {message} for a count of messages.
        self.unit = unit or _find_unit(name)
        self.buckets = buckets  # the upper limits of a histogram
        self.sources: list[tuple[type[Event], Read]] = [
            (kind, how if callable(how) else _make_read(labels, how)) for kind, how in pairs
        ]


def _find_unit(name: str) -> str:
    if name.endswith("_seconds"):
        return "s"
    return "ms" if name.endswith(".ms") else "{event}"


def _make_read(labels: Labels, field: str | None) -> Read:
    def read(event: Any) -> Reading | None:
        number = 1.0 if field is None else getattr(event, field)
        if number is None:
            return None
        return tuple([getattr(event, label) for label in labels]), number

    return read


class Counter(Metric):
    """Adds its readings."""


class Gauge(Metric):
    """Shows its last reading."""


class Histogram(Metric):
    """Shows how many of its readings are up to each limit of its buckets."""


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
        buckets=_ATTEMPT_SECONDS + _LONG_SECONDS,
    ),
    Counter(
        "children_killed",
        "Child processes killed by the watchdog, by reason.",
        (ev.ChildKilled, _count_reason),
        labels=("queue", "reason"),
    ),
    # -- leases
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


@cache
def list_metrics() -> tuple[Metric, ...]:
    """Return the metrics of the engine and of the products, which import this module."""
    products = (load_part(product.metrics) for product in find_products())
    return (*_ENGINE, *(metric for metrics in products for metric in metrics))


# -- the values of all metrics in this process

MAX_LABEL_VALUES = 100  # of one label; each is a time series that the backend keeps for days
_MAX_LABEL_LENGTH = 100
_UNNAMED = "unnamed"

# These come with every message. Counting many at once takes a third of the time, because the
# code is in the processor's cache then. Other events are counted at once: they are rare, and
# their exceptions must not stay in memory.
_FREQUENT = frozenset((ev.Claimed, ev.Completed, ev.LeaseRenewed))
_MAX_PENDING = 100


class Measurements:
    """A subscriber that keeps the value of every metric. Threads may share it.

    A histogram is what its readings are appended to. Unless a backend has a better form, that
    is a list, from which the backend takes them after they are counted.

    Label values are bounded: a text is cut and its unusual characters are replaced, and after
    the first hundred values of a label all others become `other`.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._pending: deque[Event] = deque()
        self._known: dict[str, set[str]] = {}
        self._values: dict[Metric, dict[Labels, Any]] = {}
        self._rules: dict[type[Event], list[tuple[Read, Metric, dict[Labels, Any]]]] = {}
        for metric in list_metrics():
            values = self._values[metric] = dict[Labels, Any]()
            # Without labels it starts at zero, so that its first rise shows.
            if not metric.labels and not isinstance(metric, Gauge):
                values[()] = self.make_zero(metric)
            for kind, read in metric.sources:
                self._rules.setdefault(kind, []).append((read, metric, values))
        self._histograms = [metric for metric in self._values if isinstance(metric, Histogram)]

    # -- subscribing

    def __call__(self, event: Event) -> None:
        self._pending.append(event)
        if type(event) not in _FREQUENT or len(self._pending) >= _MAX_PENDING:
            self.count_pending()

    def count_pending(self) -> None:
        """Count the events that were not counted when they came. Every reading does it."""
        with self._lock:
            while self._pending:
                self._count(self._pending.popleft())
        self.after_counting()

    def make_zero(self, metric: Metric) -> Any:
        """Return the first value of a metric."""
        return [] if isinstance(metric, Histogram) else 0.0

    def after_counting(self) -> None:
        """Pass on what must not wait until it is read. It is called without the lock."""

    def _count(self, event: Any) -> None:
        for read, metric, values in self._rules.get(type(event), ()):
            if (reading := read(event)) is not None:
                labels, number = reading
                if labels not in values:
                    labels = self._bound(metric, labels)
                    values.setdefault(labels, self.make_zero(metric))
                if type(metric) is Counter:
                    values[labels] += number
                elif type(metric) is Gauge:
                    values[labels] = number
                else:
                    values[labels].append(number)

    # -- bounding labels

    def _bound(self, metric: Metric, labels: Labels) -> Labels:
        pairs = zip(metric.labels, labels, strict=True)
        return tuple(self._bound_value(name, value) for name, value in pairs)

    def _bound_value(self, name: str, value: str) -> str:
        known = self._known.setdefault(name, set())
        if value in known:
            return value
        value = _clean(value)
        if value not in known and len(known) >= MAX_LABEL_VALUES:
            return OTHER
        known.add(value)
        return value

    # -- reading

    def read_numbers(self, metric: Metric) -> list[tuple[Labels, float]]:
        """Return the value of a counter or gauge for each combination of labels."""
        self.count_pending()
        with self._lock:
            return list(self._values[metric].items())

    def take(self, metrics: Iterable[Metric]) -> list[tuple[Metric, Labels, Any]]:
        """Return what was counted, set and observed since the last call.

        The value of a histogram is the list of its readings.
        """
        with self._lock:
            taken = []
            for metric in metrics:
                values = self._values[metric]
                taken += [(metric, labels, value) for labels, value in values.items()]
                values.clear()
            return taken


def _clean(value: str) -> str:
    """Return a label value that every backend accepts: printable ASCII, not empty, short."""
    text = value.encode("unicode_escape", "surrogatepass").decode("ascii").strip()
    return text[:_MAX_LABEL_LENGTH] or _UNNAMED
