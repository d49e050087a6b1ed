"""telemetry: measure what metrics and traces cost a worker with an empty handler on SQLite."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.cycles import fill_queue
from bench.own_queues import SQLITE, open_sqlite_at
from bench.payload import BenchTask
from bench.report import Bar, Result
from bench.session import Figures, Session, cpu_seconds, in_fresh_process
from bench.workers import do_nothing
from holdfast.events import Events
from holdfast.worker.worker import Worker

WARM_UP = 200

Handler = Callable[[BenchTask], None]


@dataclass(frozen=True, slots=True)
class Way:
    """What is switched on in Holdfast, or called by the handler itself to find the bound."""

    label: str
    metrics: str | None = None  # prometheus, otel or emf
    sampled: float | None = None  # the part of the traces that is recorded; None: no tracing
    is_bare: bool = False  # only the SDK: one histogram and one span per message


OFF = Way("off")
OFF_AGAIN = Way("off, measured again")
PROMETHEUS = Way("Prometheus", "prometheus")
EMF = Way("EMF", "emf")
OTEL = Way("OpenTelemetry metrics", "otel")
TRACES = Way("traces, 1 % sampled", None, 0.01)
PROMETHEUS_TRACES = Way("Prometheus and traces, 1 % sampled", "prometheus", 0.01)
OTEL_TRACES = Way("OpenTelemetry metrics and traces, 1 % sampled", "otel", 0.01)
ALL_TRACES = Way("OpenTelemetry metrics and traces, all sampled", "otel", 1.0)
BARE_METRIC = Way("SDK alone: one reading of a histogram", "otel", None, True)
BARE_SPAN = Way("SDK alone: one span, 1 % sampled", None, 0.01, True)
BARE_BOTH = Way("SDK alone: both", "otel", 0.01, True)
BARE_ALL = Way("SDK alone: both, all sampled", "otel", 1.0, True)
BOUNDS = {
    OTEL: BARE_METRIC,
    TRACES: BARE_SPAN,
    PROMETHEUS_TRACES: BARE_SPAN,
    OTEL_TRACES: BARE_BOTH,
    ALL_TRACES: BARE_ALL,
}
WAYS = (OFF, PROMETHEUS, EMF, *BOUNDS, *dict.fromkeys(BOUNDS.values()), OFF_AGAIN)


def run_telemetry(session: Session) -> Result:
    """Compare the rates with and without telemetry."""
    title = "SQLite queue: metrics and traces of a worker with an empty handler"
    contenders = {way.label: partial(_measure, session, way) for way in WAYS}
    measured = session.measure(title, contenders)

    def keep(way: Way) -> float:
        return 100 * measured.ratio(way.label, OFF.label)

    def make_bar(way: Way) -> Bar:
        promise = f"{way.label} at least 90 % of the rate without"
        bare = BOUNDS.get(way)
        bound = f"{bare.label} keeps {keep(bare):.0f} %" if bare else ""
        return Bar(promise, keep(way), 90, "%", aim=way is ALL_TRACES, bound=bound)

    rows = measured.make_rows(("rate", "{:,.0f}"), ("cpu", "{:.0f} µs"))
    return Result(
        title,
        ("", "messages/s", "CPU per message", "of the rate without"),
        [[*row, f"{keep(way):.1f} %"] for row, way in zip(rows, WAYS, strict=True)],
        [make_bar(way) for way in (PROMETHEUS, EMF, *BOUNDS)],
        measured,
        "The lines of the SDK alone are the bound: Holdfast is off, and the handler calls "
        "`start_as_current_span` and `record` once per message. Spans are dropped.",
    )


def _measure(session: Session, way: Way) -> Figures:
    count = session.size(8_000, 1_000)
    with session.arena.room(way.label, gib=1) as path:
        queue = fill_queue(session, SQLITE, path, count)
        return in_fresh_process(measure, way, queue, count)


def measure(way: Way, path: Path, count: int) -> Figures:
    """Measure a worker, without starting and stopping."""
    times: list[float] = []
    cpu_times: list[float] = []
    handle = _make_bare_handler(way) if way.is_bare else do_nothing

    def note_time(message: BenchTask) -> None:
        if len(times) in (WARM_UP, count - 1):
            cpu_times.append(cpu_seconds())
        times.append(perf_counter())
        handle(message)

    queue = _open_queue(path, way)
    Worker(queue, note_time).run(until_empty=True)
    assert len(times) == count, f"{way.label}: {len(times):,} of {count:,} were handled"
    measured = count - 1 - WARM_UP
    cpu = (cpu_times[-1] - cpu_times[0]) / measured * 1e6
    return {"rate": measured / (times[-1] - times[WARM_UP]), "cpu": cpu}


def _open_queue(path: Path, way: Way) -> Any:
    subscribers = [] if way.is_bare else _make_subscribers(way.metrics)
    queue = open_sqlite_at(path, events=Events(*subscribers))
    if way.sampled is not None and not way.is_bare:
        from holdfast.telemetry import OpenTelemetryTracing

        OpenTelemetryTracing(provider=_make_tracer_provider(way.sampled)).trace_queue(queue)
    return queue


def _make_subscribers(metrics: str | None) -> list[Callable[[Any], None]]:
    from holdfast import telemetry

    match metrics:
        case "prometheus":
            return [telemetry.Metrics()]
        case "emf":
            return [telemetry.EmfWriter(write=lambda text: None)]
        case "otel":
            return [telemetry.OpenTelemetryMetrics(_make_meter_provider())]
        case _:
            return []


def _make_bare_handler(way: Way) -> Handler:
    """Return a handler that makes the least calls of the SDK that any tracing needs."""
    handle: Handler = do_nothing
    if way.sampled is not None:
        tracer = _make_tracer_provider(way.sampled).get_tracer("bench")

        def handle(message: BenchTask) -> None:
            with tracer.start_as_current_span("process queue"):
                pass

    if way.metrics is None:
        return handle
    histogram = _make_meter_provider().get_meter("bench").create_histogram("seconds")
    labels, trace = {"queue": "queue"}, handle

    def record(message: BenchTask) -> None:
        trace(message)
        histogram.record(0.001, labels)

    return record


def _make_meter_provider() -> Any:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    return MeterProvider([InMemoryMetricReader()])


def _make_tracer_provider(sampled: float) -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult as ExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class Drop(SpanExporter):
        """Accepts every span and drops it."""

        def export(self, spans: Any) -> ExportResult:
            return ExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(sampled))
    provider.add_span_processor(BatchSpanProcessor(Drop()))
    return provider
