"""Traces and metrics for OpenTelemetry (extra `otel`).

The spans and their attributes follow the semantic conventions for messaging:

    span                 kind       when
    ───────────────────  ─────────  ────────────────────────────────────────────────────────────
    send <queue>         producer   push, whose context its messages carry
    receive <queue>      client     poll, with links to the messages that it brought
    process <queue>      consumer   one attempt, child of receive; it is current in the handler

What a handler calls is shown inside `process` by the instrumentation of its clients.

Only the API is used. The application's tracer provider and meter provider decide where spans
and values go; without them, they go nowhere.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import (
    NoteOutcome,
    QueueMessage,
    attach_headers,
    attach_trace,
    get_headers,
    get_lease,
    get_trace,
)
from holdfast.telemetry.metrics import Counter, Gauge, Labels, Measurements, Metric
from holdfast.version import needs_extra
from holdfast.worker.outcome import Reject, Retry

with needs_extra("otel", "OpenTelemetry needs opentelemetry-api"):
    from opentelemetry import context as context_api
    from opentelemetry import metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_OPERATIONS = ("send", "receive", "process")
_propagator = TraceContextTextMapPropagator()

Attributes = dict[str, str | int]
T = TypeVar("T")


class _Trace:
    """A span and its context. A polled message has that of its poll."""

    __slots__ = ("context", "is_recorded", "span")

    def __init__(self, span: trace.Span) -> None:
        self.span = span
        self.context = trace.set_span_in_context(span)
        self.is_recorded = span.is_recording()


class _CurrentSpan:
    """Makes a span current inside a block and ends it. An exception is shown by its type."""

    __slots__ = ("_token", "_trace")

    def __init__(self, trace: _Trace) -> None:
        self._trace = trace

    def __enter__(self) -> NoteOutcome:
        self._token = context_api.attach(self._trace.context)
        return self._note_outcome if self._trace.is_recorded else _ignore_outcome

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        context_api.detach(self._token)
        if self._trace.is_recorded:
            if kind is not None:
                _mark_error(self._trace.span, kind.__name__)
            self._trace.span.end()

    def _note_outcome(self, outcome: object) -> None:
        """Mark a failed attempt. The text is Holdfast's own, or the name of a type."""
        if isinstance(outcome, Retry | Reject):
            error = outcome.exception
            kind = type(outcome if error is None else error).__name__
            _mark_error(self._trace.span, kind, outcome.log_reason)


def _ignore_outcome(outcome: object) -> None:
    """Note nothing, because the attempt is not recorded."""


class QueueTracing:
    """Shows the calls of one queue, and the attempts at its messages, as spans.

    A poll and the attempts at what it brought are one trace. Whether it is sampled is decided
    once, with the poll, so what is not sampled costs one call of the SDK per poll.
    """

    def __init__(
        self, queue: QueueManager[Any], tracer: trace.Tracer, parent: bool, clock: Clock
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._clock = clock
        self._sending = context_api.create_key("holdfast-sending")
        system: Attributes = {
            "messaging.system": queue.messaging_system,
            "messaging.destination.name": queue.name,
        }
        self._names = {operation: f"{operation} {queue.name}" for operation in _OPERATIONS}
        self._attributes: dict[str, Attributes] = {
            operation: {
                **system,
                "messaging.operation.name": operation,
                "messaging.operation.type": operation,
            }
            for operation in _OPERATIONS
        }

    def install(self, queue: QueueManager[Any]) -> None:
        """Replace methods of this queue, so that an untraced queue has no hook at all."""
        push, push_many = queue._push, queue.push_many

        def push_traced(message: QueueMessage, delay_seconds: float) -> str:
            return self._send([message], partial(push, message, delay_seconds))

        def push_many_traced(messages: Iterable[QueueMessage], **named: Any) -> list[str]:
            messages = list(messages)
            return self._send(messages, partial(push_many, messages, **named))

        wrappers = {
            "_push": push_traced,
            "push_many": push_many_traced,
            "poll": partial(self._poll, queue.poll),
        }
        for name, wrapper in wrappers.items():
            setattr(queue, name, wrapper)
        queue.tracing = self

    def _start(
        self,
        operation: str,
        kind: trace.SpanKind,
        message_id: str | None = None,
        **options: Any,
    ) -> trace.Span:
        attributes = self._attributes[operation]
        if message_id is not None:
            attributes = {**attributes, "messaging.message.id": message_id}
        return self._tracer.start_span(
            self._names[operation], kind=kind, attributes=attributes, **options
        )

    # -- producing

    def _send(self, messages: Sequence[QueueMessage], push: Callable[[], T]) -> T:
        """Push in a span whose context the messages carry.

        `push` of one message may call `push_many`, which has no span of its own then.
        """
        if context_api.get_value(self._sending):
            return push()
        message_id = messages[0].id if len(messages) == 1 else None
        span = self._start("send", trace.SpanKind.PRODUCER, message_id)
        if message_id is None:
            span.set_attribute("messaging.batch.message_count", len(messages))
        for message in messages:
            self._inject(message, span)
        sending = _Trace(span)
        sending.context = context_api.set_value(self._sending, True, sending.context)
        with _CurrentSpan(sending):
            return push()

    def _inject(self, message: QueueMessage, span: trace.Span) -> None:
        """Let the message carry the span's context.

        A link to a span that is not recorded shows nothing. A child must know that its
        parent is not recorded.
        """
        if self._parent or span.get_span_context().trace_flags.sampled:
            headers: dict[str, str] = {}
            _propagator.inject(headers, trace.set_span_in_context(span))
            if headers:
                attach_headers(message, headers)

    # -- consuming

    def _poll(
        self, poll: Callable[..., list[QueueMessage]], *args: Any, **named: Any
    ) -> list[QueueMessage]:
        """Poll, and show what came. Idle workers poll, so an empty poll has no span."""
        started_ns = _read_ns(self._clock)
        messages = poll(*args, **named)
        if messages:
            received = self._show_poll(started_ns, messages)
            for message in messages:
                attach_trace(message, received)
        return messages

    def _show_poll(self, started_ns: int, messages: list[QueueMessage]) -> _Trace:
        """Return the span of a poll, which has ended."""
        span = self._start("receive", trace.SpanKind.CLIENT, start_time=started_ns)
        received = _Trace(span)
        if received.is_recorded:
            span.set_attribute("messaging.batch.message_count", len(messages))
            for message in messages:
                _add_link(span, message)
            span.end()
        return received

    def processing(self, message: QueueMessage) -> _CurrentSpan:
        """Return the span of one attempt, which is current inside the block.

        A message whose poll is not recorded keeps the span of the poll, so that the spans of
        its handler are not recorded either.
        """
        received: _Trace | None = get_trace(message)
        headers = get_headers(message) if self._parent else None
        context = None
        if headers is not None:
            context = _propagator.extract(headers)
        elif received is not None:
            context = received.context
            if not received.is_recorded:
                return _CurrentSpan(received)
        span = self._start("process", trace.SpanKind.CONSUMER, message.id, context=context)
        attempt = _Trace(span)
        if attempt.is_recorded:
            span.set_attribute("holdfast.attempt", get_lease(message).attempt)
            if headers is None:
                _add_link(span, message)
        return _CurrentSpan(attempt)


class OpenTelemetryTracing:
    """Shows messages as spans.

    By default an attempt has a link to the span that created its message; with `parent=True`
    it is a child of it. `provider` defaults to the global one.
    """

    def __init__(
        self,
        *,
        parent: bool = False,
        provider: "trace.TracerProvider | None" = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._parent = parent
        self._clock = clock
        self._tracer = (provider or trace.get_tracer_provider()).get_tracer("holdfast")

    def trace_queue(self, queue: QueueManager[Any]) -> None:
        """Trace the calls of this queue, and the attempts of its workers. Once is enough."""
        if queue.tracing is None:
            QueueTracing(queue, self._tracer, self._parent, self._clock).install(queue)


def _read_ns(clock: Clock) -> int:
    """Return the time as spans have it."""
    return int(clock.time() * 1e9)


def _add_link(span: trace.Span, message: QueueMessage) -> None:
    """Link a span to the span that created the message, if the message carries it."""
    headers: Mapping[str, str] | None = get_headers(message)
    if headers is not None:
        context = trace.get_current_span(_propagator.extract(headers)).get_span_context()
        if context.is_valid:
            span.add_link(context)


def _mark_error(span: trace.Span, error_type: str, text: str | None = None) -> None:
    """Show that what the span stands for failed."""
    span.set_attribute("error.type", error_type)
    span.set_status(trace.StatusCode.ERROR, text)


# -- metrics


class OpenTelemetryMetrics(Measurements):
    """A subscriber that reports the metrics to OpenTelemetry. Create one per process.

    `provider` defaults to the application's global one. Counters and gauges are read when
    the provider collects them, so an event costs no call of the SDK, except for the values
    of histograms.
    """

    def __init__(self, provider: metrics.MeterProvider | None = None) -> None:
        super().__init__()
        meter = (provider or metrics.get_meter_provider()).get_meter("holdfast")
        self._recorders: dict[Metric, metrics.Histogram] = {}
        for metric in self._values:
            name, unit, text = metric.otel_name, metric.unit, metric.text
            observe = [partial(self._observe, metric)]
            match metric:
                case Counter():
                    meter.create_observable_counter(name, observe, unit, text)
                case Gauge():
                    meter.create_observable_gauge(name, observe, unit, text)
                case _:
                    self._recorders[metric] = meter.create_histogram(
                        name, unit, text, explicit_bucket_boundaries_advisory=metric.buckets
                    )

    def _observe(self, metric: Metric, _: object) -> list[metrics.Observation]:
        return [
            metrics.Observation(number, _name_labels(metric, labels))
            for labels, number in self.read_numbers(metric)
        ]

    def after_counting(self) -> None:
        """Record the readings of histograms, because they cannot be collected by a callback."""
        for metric, labels, readings in self.take(self._histograms):
            record, attributes = self._recorders[metric].record, _name_labels(metric, labels)
            for value in readings:
                record(value, attributes)


def _name_labels(metric: Metric, labels: Labels) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))
