"""What a metric is: its names in each backend, its labels, and how events change it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from holdfast.core.events import Event

PREFIX = "holdfast"

Labels = tuple[str, ...]
Reading = tuple[Labels, float]
"""The values of a metric's labels, and the number to add, to set or to observe."""

Read = Callable[[Any], Reading | None]
"""Returns the reading of an event, or None if this event does not change the metric."""


class MetricKind(Enum):
    """What a reading does: it adds to a counter, sets a gauge, or is one of a histogram."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric. `sources` says which events change it, and how."""

    name: str
    kind: MetricKind
    unit: str
    """The unit as UCUM writes it: s, ms, or {message} for a count of messages."""
    text: str
    labels: tuple[str, ...] = ()
    sources: tuple[tuple[type[Event], Read], ...] = ()
    buckets: tuple[float, ...] = ()

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


# The reason of a loss or a kill is a text for people, with numbers and names in it. Each text
# of Holdfast's own begins in one of these ways.
_CATEGORIES: Mapping[str, str] = {
    "timed out": "timeout",
    "stalled": "stalled",
    "its cap": "capped",
    "no renewal was confirmed": "expired",
    "its deadline passed": "expired",
    "another worker took": "taken",
    "it was taken over": "taken",
    "the lease is gone": "taken",
    "lease of": "taken",
    "the conversation's lock was taken": "taken",
    "SQS does not accept the receipt": "taken",
    "the worker stop": "stopped",
    "the invocation ended": "stopped",
    "it could not be settled": "unsettled",
    "the worker process did not answer": "unresponsive",
    "it was cancelled and did not end": "unresponsive",
    "its process cannot be killed": "unresponsive",
    "its process sent an invalid frame": "invalid",
    "the worker failed": "failed",
}
OTHER = "other"


def categorize_reason(reason: str) -> str:
    """Return the category of the reason of a lost lease or a killed process."""
    for beginning, category in _CATEGORIES.items():
        if reason.startswith(beginning):
            return category
    return OTHER
