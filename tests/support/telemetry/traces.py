"""Spans that are kept in memory, and what they refer to."""

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.telemetry.opentelemetry import OpenTelemetryTracing


class Traces:
    """A tracer provider that keeps its spans, and a tracing that uses it."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def make(self, **options: Any) -> OpenTelemetryTracing:
        return OpenTelemetryTracing(provider=self.provider, **options)

    def take(self) -> list[ReadableSpan]:
        spans = list(self._exporter.get_finished_spans())
        self._exporter.clear()
        return spans

    def names(self) -> list[str]:
        return [span.name for span in self.take()]


def get_id(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def get_link_ids(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def get_parent_id(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def get_attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
