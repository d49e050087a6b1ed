"""Metrics and traces: what subscribes to events besides logs.

    events = Events(EventLog(), EmfWriter("shop"))
    queue = open_queue("sqs:orders", events=events)
    OpenTelemetryTracing().trace_queue(queue)

`Metrics` and `MetricsServer` need `holdfast[metrics]`, and what is called OpenTelemetry needs
`holdfast[otel]`.
"""

from typing import TYPE_CHECKING

from holdfast._lazy import lazy_exports

if TYPE_CHECKING:
    from holdfast.adapters.observe.emf import EmfWriter as EmfWriter
    from holdfast.adapters.observe.metrics import Metrics as Metrics
    from holdfast.adapters.observe.metrics import MetricsServer as MetricsServer
    from holdfast.adapters.observe.otel_metrics import (
        OpenTelemetryMetrics as OpenTelemetryMetrics,
    )
    from holdfast.adapters.observe.tracing import OpenTelemetryTracing as OpenTelemetryTracing
    from holdfast.core.queue.sampler import QueueSampler as QueueSampler

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "adapters.observe.emf": "EmfWriter",
        "adapters.observe.metrics": "Metrics MetricsServer",
        "adapters.observe.otel_metrics": "OpenTelemetryMetrics",
        "adapters.observe.tracing": "OpenTelemetryTracing",
        "core.queue.sampler": "QueueSampler",
    },
)
