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
    from holdfast.telemetry.otel_metrics import (
        OpenTelemetryMetrics as OpenTelemetryMetrics,
    )
    from holdfast.telemetry.prometheus import Metrics as Metrics
    from holdfast.telemetry.prometheus import MetricsServer as MetricsServer
    from holdfast.telemetry.sampler import QueueSampler as QueueSampler
    from holdfast.telemetry.tracing import OpenTelemetryTracing as OpenTelemetryTracing

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "telemetry.emf": "EmfWriter",
        "telemetry.prometheus": "Metrics MetricsServer",
        "telemetry.otel_metrics": "OpenTelemetryMetrics",
        "telemetry.tracing": "OpenTelemetryTracing",
        "telemetry.sampler": "QueueSampler",
    },
)
