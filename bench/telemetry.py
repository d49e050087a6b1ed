"""telemetry: measure what metrics and traces cost a worker with an empty handler on SQLite."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.holdfast import SQLITE_FILE, SQLITE_ONE
from bench.measure import filled
from bench.overhead import time_tasks
from bench.payload import BenchTask
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result, ratio, spread
from holdfast.adapters.local.sqlite.queue.queue import SQLiteQueue
from holdfast.core.events import Events

NAME = "telemetry"
TITLE = "SQLite queue: metrics and traces of a worker with an empty handler"


@dataclass(frozen=True, slots=True)
class Way:
    """What is switched on."""

    label: str
    metrics: str | None = None  # prometheus, otel or emf
    sampled: float | None = None  # the part of the traces that is recorded; None: no tracing


OFF = Way("off")
OFF_AGAIN = Way("off, measured again")
PROMETHEUS = Way("Prometheus", "prometheus")
EMF = Way("EMF", "emf")
OTEL = Way("OpenTelemetry metrics", "otel")
TRACES = Way("OpenTelemetry metrics and traces, 1 % sampled", "otel", 0.01)
ALL_TRACES = Way("OpenTelemetry metrics and traces, all sampled", "otel", 1.0)
WAYS = (OFF, PROMETHEUS, EMF, OTEL, TRACES, ALL_TRACES, OFF_AGAIN)

Measured = Mapping[Way, Sequence[float]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    count = session.size(10_000, 2_000)
    measured: dict[Way, list[float]] = defaultdict(list)
    for way in session.interleaved(TITLE, WAYS):
        with session.arena.room(way.label) as path:
            queue = filled(session, SQLITE_ONE, path, count)
            measured[way].append(in_fresh_process(messages_per_second, way, queue, count))
    return _result(measured, count)


def messages_per_second(way: Way, path: Path, count: int) -> float:
    """Measure from the first message to the last, without starting and stopping."""
    events = Events(*_make_subscribers(way.metrics))
    queue = SQLiteQueue(path / SQLITE_FILE, BenchTask, events=events)
    if way.sampled is not None:
        _trace(queue, way.sampled)
    times = time_tasks(queue, 1)
    assert len(times) == count, f"{way.label}: {len(times):,} of {count:,} were handled"
    return (count - 1) / (max(times) - min(times))


def _make_subscribers(metrics: str | None) -> list[Callable[[Any], None]]:
    from holdfast import telemetry

    match metrics:
        case "prometheus":
            return [telemetry.Metrics()]
        case "emf":
            return [telemetry.EmfWriter(write=lambda text: None)]
        case "otel":
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader

            return [telemetry.OpenTelemetryMetrics(MeterProvider([InMemoryMetricReader()]))]
        case _:
            return []


def _trace(queue: SQLiteQueue[BenchTask], sampled: float) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    from holdfast.telemetry import OpenTelemetryTracing

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(sampled))
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    OpenTelemetryTracing(provider=provider).trace_queue(queue)


def _result(measured: Measured, count: int) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=("", "messages/s", "lowest to highest", "of the rate without"),
        rows=[
            [
                way.label,
                f"{median(rates):,.0f}",
                spread(rates),
                f"{ratio(rates, measured[OFF]):.1%}",
            ]
            for way, rates in measured.items()
        ],
        bars=_bars(measured),
        notes=(f"{count:,} messages waiting, one thread; from the first to the last.",),
    )


def _bars(measured: Measured) -> list[Bar]:
    def compare(way: Way) -> float:
        return 100 * ratio(measured[way], measured[OFF])

    return [
        *(
            Bar(f"{way.label} at least 90 % of the rate without", compare(way), 90, "%")
            for way in (PROMETHEUS, EMF, OTEL, TRACES)
        ),
        # Three recorded spans cost the SDK more than twice what a message costs Holdfast.
        Bar(f"{ALL_TRACES.label} at least 90 %", compare(ALL_TRACES), 90, "%", aim=True),
    ]
