"""The values of all metrics in this process, which Prometheus, OpenTelemetry and EMF show."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import cast

from holdfast.adapters.observe.metric import OTHER, Labels, Metric, MetricKind, Read
from holdfast.adapters.observe.metric_table import HELD, METRICS, REDELIVERY
from holdfast.core import events as ev
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Event

MAX_LABEL_VALUES = 100  # of one label; each is a time series that the backend keeps for days
_MAX_LABEL_LENGTH = 100
_UNNAMED = "unnamed"

# Events after which a message is no longer held, and those that say until when it is.
_END_EVENTS = (ev.Completed, ev.Retried, ev.DeadLettered, ev.GivenBack, ev.MessageLeaseLost)
_LEASE_EVENTS = frozenset((ev.Claimed, ev.LeaseRenewed, *_END_EVENTS))

# These come with every message. Counting many at once takes half of the time, because the
# code is in the processor's cache then. Other events are counted at once: they are rare, and
# their exceptions must not stay in memory.
_FREQUENT = frozenset((ev.Claimed, ev.Completed, ev.LeaseRenewed))
_MAX_PENDING = 100

# Reading a member from the Enum is a call, and these are read for every event.
_COUNTER, _, _HISTOGRAM = MetricKind

OnReading = Callable[[Metric, Labels, float], None]


@dataclass(slots=True)
class Distribution:
    """The readings of a histogram: how many are in each bucket, and their sum.

    The last bucket has no upper limit.
    """

    counts: list[int]
    sum: float = 0.0

    def add(self, bucket: int, value: float) -> None:
        """Add one reading."""
        self.counts[bucket] += 1
        self.sum += value


_Rules = dict[type[Event], list[tuple[Metric, Read]]]


def _list_rules() -> _Rules:
    rules: _Rules = {}
    for metric in METRICS:
        for kind, read in metric.sources:
            rules.setdefault(kind, []).append((metric, read))
    return rules


class Measurements:
    """A subscriber that keeps the value of every metric. Threads may share it.

    Label values are bounded: a text is cut and its unusual characters are replaced, and after
    the first hundred values of a label all others become `other`. `on_reading` is called with
    each reading of a gauge or histogram, for exporters that need more than the sums.
    """

    def __init__(
        self, clock: Clock = SYSTEM_CLOCK, on_reading: OnReading | None = None
    ) -> None:
        self._clock = clock
        self._on_reading = on_reading
        self._lock = Lock()
        self._pending: deque[Event] = deque()
        self._rules = _list_rules()
        self._numbers: dict[Metric, dict[Labels, float]] = {}
        self._distributions: dict[Metric, dict[Labels, Distribution]] = {}
        self._known: dict[str, set[str]] = {}
        self._held: dict[str, dict[tuple[str, int], float]] = {}
        for metric in METRICS:
            self._add_metric(metric)

    def _add_metric(self, metric: Metric) -> None:
        """Start a counter or histogram without labels at zero, so that its first rise shows."""
        starts_at_zero = metric.kind is not MetricKind.GAUGE and not metric.labels
        if metric.kind is MetricKind.HISTOGRAM:
            self._distributions[metric] = {}
            if starts_at_zero:
                self._distributions[metric][()] = _make_distribution(metric)
        else:
            self._numbers[metric] = {(): 0.0} if starts_at_zero else {}

    # -- subscribing

    def __call__(self, event: Event) -> None:
        self._pending.append(event)
        if type(event) not in _FREQUENT or len(self._pending) >= _MAX_PENDING:
            self.count_pending()

    def count_pending(self) -> None:
        """Count the events that were not counted when they came. Every reading does it."""
        noted: list[tuple[Metric, Labels, float]] = []
        with self._lock:
            while self._pending:
                self._count(self._pending.popleft(), noted)
        if self._on_reading is not None:  # without the lock, because it may wait for others
            for each in noted:
                self._on_reading(*each)

    def _count(self, event: Event, noted: list[tuple[Metric, Labels, float]]) -> None:
        for metric, read in self._rules.get(type(event), ()):
            if (reading := read(event)) is not None:
                labels = self._apply(metric, *reading)
                if metric.kind is not _COUNTER:
                    noted.append((metric, labels, reading[1]))
        if type(event) in _LEASE_EVENTS:
            self._track(cast(ev.MessageEvent, event))

    def _apply(self, metric: Metric, labels: Labels, value: float) -> Labels:
        """Apply one reading, and return its labels as they are shown."""
        if metric.kind is _HISTOGRAM:
            distributions = self._distributions[metric]
            if labels not in distributions:
                labels = self._bound(metric, labels)
                distributions.setdefault(labels, _make_distribution(metric))
            distributions[labels].add(bisect_left(metric.buckets, value), value)
            return labels
        numbers = self._numbers[metric]
        if labels not in numbers:
            labels = self._bound(metric, labels)
        numbers[labels] = numbers.get(labels, 0.0) + value if metric.kind is _COUNTER else value
        return labels

    def _track(self, event: ev.MessageEvent) -> None:
        """Note which leases are held.

        Counting up and down would be wrong, because a lost lease may end twice, and a
        message that the queue itself dead-letters was never held.
        """
        key = event.message_id, event.attempt
        held = self._held.get(event.queue)
        if held is None:
            held = self._held.setdefault(self._bound_value("queue", event.queue), {})
        if isinstance(event, _END_EVENTS):
            held.pop(key, None)
        elif isinstance(event, ev.Claimed) or key in held:
            held[key] = getattr(event, "deadline", None) or 0.0

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
            return list(self._numbers[metric].items())

    def _compute_redelivery(self) -> Iterator[tuple[Labels, float]]:
        now = self._clock.monotonic()
        for queue, held in self._held.items():
            yield (queue,), max(0.0, max(held.values(), default=0.0) - now)

    def read_distributions(self, metric: Metric) -> list[tuple[Labels, Distribution]]:
        """Return the distribution of a histogram for each combination of labels."""
        self.count_pending()
        with self._lock:
            return [
                (labels, Distribution(list(kept.counts), kept.sum))
                for labels, kept in self._distributions[metric].items()
            ]


def _make_distribution(metric: Metric) -> Distribution:
    return Distribution([0] * (len(metric.buckets) + 1))


def _clean(value: str) -> str:
    """Return a label value that every backend accepts: printable ASCII, not empty, short."""
    text = value.encode("unicode_escape", "surrogatepass").decode("ascii").strip()
    return text[:_MAX_LABEL_LENGTH] or _UNNAMED
