"""The values of all metrics in this process, which Prometheus, OpenTelemetry and EMF show."""

from collections import deque
from collections.abc import Iterable
from threading import Lock
from typing import Any

from holdfast import events as ev
from holdfast.events import Event
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.telemetry.metrics import (
    HELD,
    OTHER,
    REDELIVERY,
    Counter,
    Gauge,
    Histogram,
    Labels,
    Metric,
    Read,
    list_metrics,
)

MAX_LABEL_VALUES = 100  # of one label; each is a time series that the backend keeps for days
_MAX_LABEL_LENGTH = 100
_UNNAMED = "unnamed"

# Events that say until when a message is held, and those after which it is no longer held.
_LEASE_EVENTS = frozenset((ev.Claimed, ev.LeaseRenewed))
_END_EVENTS = frozenset(ev.END_EVENTS)

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

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = Lock()
        self._pending: deque[Event] = deque()
        self._known: dict[str, set[str]] = {}
        self._held: dict[str, dict[tuple[str, int], float]] = {}
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
        kind = type(event)
        for read, metric, values in self._rules.get(kind, ()):
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
        if kind in _END_EVENTS:
            self._get_held(event.queue).pop((event.message_id, event.attempt), None)
        elif kind in _LEASE_EVENTS:
            held = self._get_held(event.queue)
            key = event.message_id, event.attempt
            if kind is ev.Claimed or key in held:
                held[key] = event.deadline or 0.0

    def _get_held(self, queue: str) -> dict[tuple[str, int], float]:
        """Return the leases that are held, with their deadlines.

        Counting up and down would be wrong, because a lost lease may end twice, and a
        message that the queue itself dead-letters was never held.
        """
        held = self._held.get(queue)
        if held is None:
            held = self._held.setdefault(self._bound_value("queue", queue), {})
        return held

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
            if metric is HELD:
                return [((queue,), float(len(held))) for queue, held in self._held.items()]
            if metric is REDELIVERY:
                now = self._clock.monotonic()
                ends = {q: max(held.values(), default=0.0) for q, held in self._held.items()}
                return [((queue,), max(0.0, end - now)) for queue, end in ends.items()]
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
