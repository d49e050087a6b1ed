# Written by tools/stubs.py from the table of names in the module itself.
from holdfast.telemetry.emf import EmfWriter as EmfWriter
from holdfast.telemetry.opentelemetry import OpenTelemetryMetrics as OpenTelemetryMetrics
from holdfast.telemetry.opentelemetry import OpenTelemetryTracing as OpenTelemetryTracing
from holdfast.telemetry.prometheus import Metrics as Metrics
from holdfast.telemetry.prometheus import MetricsServer as MetricsServer
from holdfast.telemetry.setup import QueueSampler as QueueSampler
