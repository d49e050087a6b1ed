"""The values of all metrics in this process, which Prometheus, OpenTelemetry and EMF show."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from typing import Any

from holdfast.adapters.observe.metric import OTHER, Labels, Metric, MetricKind, Read
from holdfast.adapters.observe.metric_table import HELD, METRICS, REDELIVERY
from holdfast.core import events as ev
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Event

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

HISTOGRAMS = tuple(metric for metric in METRICS if metric.kind is MetricKind.HISTOGRAM)


class Distribution:
    """The readings of a histogram: how many are in each bucket, and their sum.

    The last bucket has no upper limit.
    """

    __slots__ = ("_limits", "counts", "sum")

    def __init__(self, metric: Metric) -> None:
        self._limits = metric.buckets
        self.counts = [0] * (len(metric.buckets) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Add one reading."""
        self.counts[bisect_left(self._limits, value)] += 1
        self.sum += value


class Readings(list[float]):
    """All readings of a histogram, for a backend that needs each of them."""

    __slots__ = ()
    add = list[float].append

    def __init__(self, metric: Metric) -> None:
        super().__init__()


MakeObservations = type[Distribution] | type[Readings]


class _Series:
    """The values of one metric by labels. New labels are bounded before they are added."""

    __slots__ = ("_bound", "_make_zero", "metric", "values")

    def __init__(
        self,
        metric: Metric,
        bound: Callable[[Metric, Labels], Labels],
        make_observations: MakeObservations,
    ) -> None:
        self.metric = metric
        self._bound = bound
        is_histogram = metric.kind is MetricKind.HISTOGRAM
        self._make_zero = partial(make_observations, metric) if is_histogram else float
        self.values: dict[Labels, Any] = {}
        # Without labels it starts at zero, so that its first rise shows.
        if metric.kind is not MetricKind.GAUGE and not metric.labels:
            self._add(())

    def _add(self, labels: Labels) -> Labels:
        labels = self._bound(self.metric, labels)
        if labels not in self.values:
            self.values[labels] = self._make_zero()
        return labels

    def take(self) -> dict[Labels, Any]:
        """Return the values and start again without any."""
        values, self.values = self.values, {}
        return values

    # -- applying a reading, by kind

    def count(self, labels: Labels, value: float) -> None:
        if labels not in self.values:
            labels = self._add(labels)
        self.values[labels] += value

    def set(self, labels: Labels, value: float) -> None:
        self.values[self._add(labels)] = value

    def observe(self, labels: Labels, value: float) -> None:
        if labels not in self.values:
            labels = self._add(labels)
        self.values[labels].add(value)


_APPLY = {
    MetricKind.COUNTER: _Series.count,
    MetricKind.GAUGE: _Series.set,
    MetricKind.HISTOGRAM: _Series.observe,
}
_Apply = Callable[[_Series, Labels, float], None]


class Measurements:
    """A subscriber that keeps the value of every metric. Threads may share it.

    Label values are bounded: a text is cut and its unusual characters are replaced, and after
    the first hundred values of a label all others become `other`.
    """

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, make_observations: MakeObservations = Distribution
    ) -> None:
        self._clock = clock
        self._lock = Lock()
        self._pending: deque[Event] = deque()
        self._known: dict[str, set[str]] = {}
        self._held: dict[str, dict[tuple[str, int], float]] = {}
        self._series: dict[Metric, _Series] = {}
        self._rules: dict[type[Event], list[tuple[Read, _Apply, _Series]]] = {}
        for metric in METRICS:
            series = _Series(metric, self._bound, make_observations)
            self._series[metric] = series
            for kind, read in metric.sources:
                rule = read, _APPLY[metric.kind], series
                self._rules.setdefault(kind, []).append(rule)

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

    def after_counting(self) -> None:
        """Pass on what must not wait until it is read. It is called without the lock."""

    def _count(self, event: Any) -> None:
        kind = type(event)
        for read, apply, series in self._rules.get(kind, ()):
            if (reading := read(event)) is not None:
                apply(series, *reading)
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
                return list(self._compute_redelivery())
            return list(self._series[metric].values.items())

    def _compute_redelivery(self) -> Iterator[tuple[Labels, float]]:
        now = self._clock.monotonic()
        for queue, held in self._held.items():
            yield (queue,), max(0.0, max(held.values(), default=0.0) - now)

    def read_distributions(self, metric: Metric) -> list[tuple[Labels, list[int], float]]:
        """Return the counts of the buckets of a histogram, and its sum, for all labels."""
        self.count_pending()
        with self._lock:
            return [
                (labels, list(kept.counts), kept.sum)
                for labels, kept in self._series[metric].values.items()
            ]

    def has_readings(self, count: int) -> bool:
        """Return whether `count` Readings of one histogram were not taken yet."""
        with self._lock:
            return any(
                len(readings) >= count
                for metric in HISTOGRAMS
                for readings in self._series[metric].values.values()
            )

    def take(self, metrics: Iterable[Metric]) -> list[tuple[Metric, Labels, Any]]:
        """Return what was counted, set and observed since the last call."""
        with self._lock:
            return [
                (metric, labels, value)
                for metric in metrics
                for labels, value in self._series[metric].take().items()
            ]


def _clean(value: str) -> str:
    """Return a label value that every backend accepts: printable ASCII, not empty, short."""
    text = value.encode("unicode_escape", "surrogatepass").decode("ascii").strip()
    return text[:_MAX_LABEL_LENGTH] or _UNNAMED
