"""Metrics and traces: what subscribes to events besides logs.

    events = Events(EventLog(), EmfWriter("shop"))
    queue = open_queue("sqs:orders", events=events)
    OpenTelemetryTracing().trace_queue(queue)

`Metrics` and `MetricsServer` need the extra `metrics`, and what is called OpenTelemetry needs
the extra `otel`.
"""

from holdfast._lazy import lazy_exports

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "telemetry.emf": "EmfWriter",
        "telemetry.prometheus": "Metrics MetricsServer",
        "telemetry.opentelemetry": "OpenTelemetryMetrics OpenTelemetryTracing",
        "telemetry.setup": "QueueSampler",
    },
)
