"""What a metric is: its names in each backend, its labels, and how events change it.

The names with dots are those of OpenTelemetry and CloudWatch:

    table            heartbeat.sent                   attempt_seconds
    Prometheus       holdfast_heartbeat_sent_total    holdfast_attempt_seconds
    OpenTelemetry    holdfast.heartbeat.sent          holdfast.attempt_seconds
    CloudWatch       heartbeat.sent.total             attempt_seconds
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

from holdfast.events import Event, QueueEvent

PREFIX = "holdfast"

Labels = tuple[str, ...]
Reading = tuple[Labels, float]
"""The values of a metric's labels, and the number to add, to set or to observe."""

Read = Callable[[Any], Reading | None]
"""Returns the reading of an event, or None if this event does not change the metric."""

Source = type[Event] | tuple[type[Event], str | Read]
"""Events that change a metric: each by one, by a field of this name, or as read."""


class MetricKind(Enum):
    """What a reading does: it adds to a counter, sets a gauge, or is one of a histogram."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric:
    """One metric. `sources` says which events change it, and how.

    A label is the field of the same name of the event, unless a function reads it. Without
    `labels`, events of queues have the label `queue`, and others have none.
    """

    kind: ClassVar[MetricKind]

    def __init__(
        self,
        name: str,
        text: str,
        *sources: Source,
        labels: Labels | None = None,
        unit: str = "{event}",
        buckets: tuple[float, ...] = (),
    ) -> None:
        pairs = [source if isinstance(source, tuple) else (source, None) for source in sources]
        if labels is None:
            labels = ("queue",) if issubclass(pairs[0][0], QueueEvent) else ()
        self.name = name
        self.text = text
        self.labels = labels
        self.unit = unit  # as UCUM writes it: s, ms, or {message} for a count of messages
        self.buckets = buckets  # the upper limits of a histogram
        self.sources: list[tuple[type[Event], Read]] = [
            (kind, how if callable(how) else _make_read(labels, how)) for kind, how in pairs
        ]

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus, without the `_total` of a counter."""
        return f"{PREFIX}_{self.name.replace('.', '_')}"

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry."""
        return f"{PREFIX}.{self.name}"

    @property
    def cloudwatch_name(self) -> str:
        """The name in CloudWatch, as the alarms of heartbeats have it."""
        return f"{self.name}.total" if self.kind is MetricKind.COUNTER else self.name


def _make_read(labels: Labels, field: str | None) -> Read:
    def read(event: Any) -> Reading | None:
        number = 1.0 if field is None else getattr(event, field)
        if number is None:
            return None
        return tuple([getattr(event, label) for label in labels]), number

    return read


class Counter(Metric):
    """Adds its readings."""

    kind = MetricKind.COUNTER


class Gauge(Metric):
    """Shows its last reading."""

    kind = MetricKind.GAUGE


class Histogram(Metric):
    """Shows how many of its readings are up to each limit of its buckets."""

    kind = MetricKind.HISTOGRAM
