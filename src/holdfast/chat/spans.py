"""Spans of conversations, for OpenTelemetry:

write reply    client   a reply was written, child of the attempt at its trigger
send reply     client   a part of it was sent, likewise
"""

from opentelemetry import trace

from holdfast.chat.events import ReplySent, ReplyWritten
from holdfast.events import Event
from holdfast.lease.clock import Clock
from holdfast.telemetry.opentelemetry import read_ns


class ReplySpans:
    """A subscriber that shows the steps of a reply inside a traced attempt."""

    def __init__(self, tracer: trace.Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock

    def __call__(self, event: Event) -> None:
        match event:
            case ReplyWritten(seconds=seconds):
                self._show("write reply", seconds)
            case ReplySent():
                self._show("send reply", 0.0)

    def _show(self, name: str, seconds: float) -> None:
        """Show a step of the attempt that is current, unless there is none."""
        if trace.get_current_span().get_span_context().is_valid:
            started_ns = read_ns(self._clock) - int(seconds * 1e9)
            kind = trace.SpanKind.CLIENT
            self._tracer.start_span(name, kind=kind, start_time=started_ns).end()
