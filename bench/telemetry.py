"""telemetry: measure what metrics and traces cost a worker with an empty handler on SQLite."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from bench.figures import cpu_seconds
from bench.holdfast import SQLITE_FILE, SQLITE_ONE
from bench.measure import filled
from bench.payload import BenchTask
from bench.session import Session, in_fresh_process
from bench.verdict import Bar, Result, ratio, spread
from holdfast.events import Events
from holdfast.queues.sqlite.queue import SQLiteQueue
from holdfast.worker.worker import Worker

NAME = "telemetry"
TITLE = "SQLite queue: metrics and traces of a worker with an empty handler"
WARM_UP = 200

Handler = Callable[[BenchTask], None]


@dataclass(frozen=True, slots=True)
class Way:
    """What is switched on in Holdfast, or called by the handler itself to find the bound."""

    label: str
    metrics: str | None = None  # prometheus, otel or emf
    sampled: float | None = None  # the part of the traces that is recorded; None: no tracing
    is_bare: bool = False  # only the SDK: one histogram and one span per message

    def __str__(self) -> str:
        return self.label


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


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a worker was from its first message to its last."""

    per_second: float
    cpu_microseconds: float


Measured = Mapping[Way, Sequence[Speed]]


def run(session: Session) -> Result:
    """Run the benchmark and return its result."""
    count = session.size(8_000, 1_000)
    measured: dict[Way, list[Speed]] = defaultdict(list)
    for way in session.interleaved(TITLE, WAYS):
        with session.arena.room(way.label, gib=1) as path:
            queue = filled(session, SQLITE_ONE, path, count)
            measured[way].append(in_fresh_process(measure, way, queue, count))
    return _result(measured, count)


def measure(way: Way, path: Path, count: int) -> Speed:
    """Measure a worker, without starting and stopping."""
    times: list[float] = []
    cpu_times: list[float] = []
    handle = _make_bare_handler(way) if way.is_bare else _do_nothing

    def note_time(message: BenchTask) -> None:
        if len(times) in (WARM_UP, count - 1):
            cpu_times.append(cpu_seconds())
        times.append(perf_counter())
        handle(message)

    queue = _open_queue(path, way)
    Worker(queue, note_time).run(until_empty=True)
    assert len(times) == count, f"{way}: {len(times):,} of {count:,} were handled"
    measured = count - 1 - WARM_UP
    cpu = (cpu_times[-1] - cpu_times[0]) / measured * 1e6
    return Speed(measured / (times[-1] - times[WARM_UP]), cpu)


def _do_nothing(message: BenchTask) -> None:
    pass


def _open_queue(path: Path, way: Way) -> SQLiteQueue[BenchTask]:
    subscribers = [] if way.is_bare else _make_subscribers(way.metrics)
    queue = SQLiteQueue(path / SQLITE_FILE, BenchTask, events=Events(*subscribers))
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
    handle: Handler = _do_nothing
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


def _result(measured: Measured, count: int) -> Result:
    return Result(
        name=NAME,
        title=TITLE,
        columns=(
            "",
            "messages/s",
            "lowest to highest",
            "of the rate without",
            "CPU per message",
        ),
        rows=[
            [
                way.label,
                f"{median(_list_rates(speeds)):,.0f}",
                spread(_list_rates(speeds)),
                f"{_compare(measured, way):.1f} %",
                f"{median(speed.cpu_microseconds for speed in speeds):.0f} µs",
            ]
            for way, speeds in measured.items()
        ],
        bars=_bars(measured),
        notes=(
            f"{count:,} messages waiting, one thread; from the first to the last. Spans go to "
            "a BatchSpanProcessor whose exporter drops them.",
            "The lines of the SDK alone are the bound: Holdfast is off, and the handler calls "
            "`start_as_current_span` and `record` once per message.",
        ),
    )


def _list_rates(speeds: Sequence[Speed]) -> list[float]:
    return [speed.per_second for speed in speeds]


def _compare(measured: Measured, way: Way) -> float:
    return 100 * ratio(_list_rates(measured[way]), _list_rates(measured[OFF]))


def _bars(measured: Measured) -> list[Bar]:
    def keep(way: Way) -> Bar:
        bound = BOUNDS.get(way)
        return Bar(
            f"{way} at least 90 % of the rate without",
            _compare(measured, way),
            90,
            "%",
            aim=way is ALL_TRACES,
            bound=f"{bound} keeps {_compare(measured, bound):.0f} %" if bound else "",
        )

    return [keep(way) for way in (PROMETHEUS, EMF, *BOUNDS)]
