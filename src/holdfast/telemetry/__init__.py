"""Metrics and traces: what subscribes to events besides logs.

    events = Events(EventLog(), EmfWriter("shop"))
    queue = open_queue("sqs:orders", events=events)
    OpenTelemetryTracing().trace_queue(queue)

`Metrics` and `MetricsServer` need the extra `metrics`, and what is called OpenTelemetry needs
the extra `otel`.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.telemetry.emf import EmfWriter as EmfWriter
    from holdfast.telemetry.opentelemetry import OpenTelemetryMetrics as OpenTelemetryMetrics
    from holdfast.telemetry.opentelemetry import OpenTelemetryTracing as OpenTelemetryTracing
    from holdfast.telemetry.prometheus import Metrics as Metrics
    from holdfast.telemetry.prometheus import MetricsServer as MetricsServer
    from holdfast.telemetry.setup import QueueSampler as QueueSampler

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "telemetry.emf": "EmfWriter",
        "telemetry.prometheus": "Metrics MetricsServer",
        "telemetry.opentelemetry": "OpenTelemetryMetrics OpenTelemetryTracing",
        "telemetry.setup": "QueueSampler",
    },
)
