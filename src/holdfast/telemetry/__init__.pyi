# Written by tools/stubs.py from the table of names in the module itself.
from holdfast.telemetry.emf import EmfWriter as EmfWriter
from holdfast.telemetry.otel_metrics import OpenTelemetryMetrics as OpenTelemetryMetrics
from holdfast.telemetry.prometheus import Metrics as Metrics
from holdfast.telemetry.prometheus import MetricsServer as MetricsServer
from holdfast.telemetry.sampler import QueueSampler as QueueSampler
from holdfast.telemetry.tracing import OpenTelemetryTracing as OpenTelemetryTracing
