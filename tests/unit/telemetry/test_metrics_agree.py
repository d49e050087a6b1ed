"""Prometheus, OpenTelemetry and CloudWatch show the same values after the same events."""

import random
from collections.abc import Iterator
from typing import Any

import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from holdfast import events as ev
from holdfast.chat import events as cv
from holdfast.events import Event, Events
from holdfast.exports import events as jv
from holdfast.telemetry.emf import EmfWriter
from holdfast.telemetry.metrics import Counter, Gauge, Histogram, Metric, list_metrics
from holdfast.telemetry.opentelemetry import OpenTelemetryMetrics
from holdfast.telemetry.prometheus import Metrics
from holdfast.testing import ManualClock
from support.telemetry.emf_lines import get_labels, get_values, parse_lines

Series = tuple[str, frozenset[tuple[str, str]]]
"""The name of a metric in the table, and its labels."""

Values = dict[Series, Any]
"""A number for each counter and gauge; count, sum and buckets for each histogram."""


class Backends:
    """The three exporters, with the same events and the same clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = prometheus_client.CollectorRegistry()
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.texts: list[str] = []
        self.emf = EmfWriter(write=self.texts.append, clock=self.clock)
        prometheus = Metrics(self.registry)
        otel = OpenTelemetryMetrics(self.provider)
        self.events = Events(prometheus, otel, self.emf)

    def read_prometheus(self) -> Values:
        values: Values = {}
        for family in self.registry.collect():
            metric = find_metric("prometheus_name", family.name)
            assert family.type == type(metric).__name__.lower()
            for sample in family.samples:
                labels = {name: text for name, text in sample.labels.items() if name != "le"}
                series = make_series(metric, labels)
                if not isinstance(metric, Histogram):
                    values[series] = sample.value
                    continue
                kept = values.setdefault(series, {"buckets": []})
                match sample.name.removeprefix(family.name):
                    case "_bucket":
                        kept["buckets"].append(sample.value - sum(kept["buckets"]))
                    case suffix:
                        kept[suffix.removeprefix("_")] = sample.value
        return values

    def read_otel(self) -> Values:
        values: Values = {}
        for metric, point in self._list_points():
            series = make_series(metric, dict(point.attributes))
            if isinstance(metric, Histogram):
                assert tuple(point.explicit_bounds) == metric.buckets
                buckets = list(point.bucket_counts)
                values[series] = {"count": point.count, "sum": point.sum, "buckets": buckets}
            else:
                values[series] = point.value
        return values

    def _list_points(self) -> Iterator[tuple[Metric, Any]]:
        data: Any = self.reader.get_metrics_data()
        for shown in data.resource_metrics[0].scope_metrics[0].metrics:
            metric = find_metric("otel_name", shown.name)
            assert (shown.unit, shown.description) == (metric.unit, metric.text)
            for point in shown.data.data_points:
                yield metric, point

    def read_emf(self) -> Values:
        """Return sums of counters, the last gauges, and histograms of all lines so far."""
        self.emf.flush()
        values: Values = {}
        for line in parse_lines("".join(self.texts)):
            for name, value in get_values(line).items():
                metric = find_metric("cloudwatch_name", name)
                series = make_series(metric, get_labels(line))
                match metric:
                    case Counter():
                        values[series] = values.get(series, 0.0) + value
                    case Gauge():
                        values[series] = value
                    case Histogram():
                        add_readings(metric, values.setdefault(series, {}), value)
        return values


def add_readings(metric: Metric, kept: dict[str, Any], readings: list[float]) -> None:
    kept["count"] = kept.get("count", 0) + len(readings)
    kept["sum"] = kept.get("sum", 0.0) + sum(readings)
    counts = kept.setdefault("buckets", [0] * (len(metric.buckets) + 1))
    for reading in readings:
        counts[sum(limit < reading for limit in metric.buckets)] += 1


def find_metric(attribute: str, name: str) -> Metric:
    [metric] = [metric for metric in list_metrics() if getattr(metric, attribute) == name]
    return metric


def make_series(metric: Metric, labels: dict[str, str]) -> Series:
    assert set(labels) == set(metric.labels)
    return metric.name, frozenset(labels.items())


def drop_zeros(values: Values) -> Values:
    """Leave out what no event changed: CloudWatch gets no line for it."""
    return {
        series: value
        for series, value in values.items()
        if not ((isinstance(value, dict) and value["count"] == 0) or value == 0)
    }


def approximately(values: Values) -> Any:
    return {series: pytest.approx(value) for series, value in flatten(values).items()}


def flatten(values: Values) -> Values:
    """Write a histogram as a list, because `approx` compares no nested values."""
    return {
        series: [value["count"], value["sum"], *value["buckets"]]
        if isinstance(value, dict)
        else value
        for series, value in drop_zeros(values).items()
    }


KINDS = [
    kind
    for module in (ev, jv, cv)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind.__match_args__
]
TEXTS = ["q", "other queue", "", "\n", "stalled: no beat for 3 s", "timed out after 5 s"]


def make_event(kind: type[Event], rng: random.Random, now: float) -> Event:
    samples: dict[str, Any] = {
        "str": lambda: rng.choice(TEXTS),
        "int": lambda: rng.randrange(9),
        "float": lambda: rng.choice([0.0, 0.01, 0.3, 5.0, 4000.0, 50_000.0]),
        "bool": lambda: rng.random() < 0.5,
        "str | None": lambda: None,
        "float | None": lambda: rng.choice([None, 7.5]),
    }
    values = [samples[kind.__dataclass_fields__[name].type]() for name in kind.__match_args__]
    attached = {"exception": None, "seconds": rng.choice([None, 2.0]), "deadline": now + 60}
    return kind(*values, *(attached[name] for name in kind.attached))


@pytest.mark.parametrize("seed", range(5))
def test_the_backends_show_the_same_values_for_the_same_events(seed: int) -> None:
    backends, rng = Backends(), random.Random(seed)
    for _ in range(2000):
        backends.events.emit(make_event(rng.choice(KINDS), rng, backends.clock.monotonic()))
        backends.clock.advance(rng.choice([0.0, 0.1]))
    prometheus = backends.read_prometheus()
    assert {name for name, _ in prometheus} == {metric.name for metric in list_metrics()}
    assert flatten(backends.read_otel()) == approximately(prometheus)
    assert flatten(backends.read_emf()) == approximately(prometheus)


def test_without_a_provider_nothing_fails() -> None:
    OpenTelemetryMetrics()(ev.Completed("q", "m", 1, 1.0))
