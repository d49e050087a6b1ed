"""The metrics for OpenTelemetry (extra `otel`).

Only the API is used. Where the values go is decided by the meter provider of the application,
and without one they go nowhere.
"""

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.telemetry.measurements import Measurements
from holdfast.telemetry.metric import Labels, Metric, MetricKind
from holdfast.telemetry.metric_table import HISTOGRAMS, METRICS
from holdfast.version import needs_extra

with needs_extra("otel", "OpenTelemetry needs opentelemetry-api"):
    from opentelemetry import metrics


class OpenTelemetryMetrics(Measurements):
    """A subscriber that reports the metrics to OpenTelemetry. Create one per process.

    `provider` defaults to the application's global one. Counters and gauges are read when
    the provider collects them, so an event costs no call of the SDK, except for the values
    of histograms.
    """

    def __init__(
        self, provider: metrics.MeterProvider | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(clock)
        meter = (provider or metrics.get_meter_provider()).get_meter("holdfast")
        self._histograms: dict[Metric, Any] = {}
        for metric in METRICS:
            self._add_instrument(meter, metric)

    def _add_instrument(self, meter: Any, metric: Metric) -> None:
        name, unit, text = metric.otel_name, metric.unit, metric.text
        match metric.kind:
            case MetricKind.COUNTER:
                meter.create_observable_counter(name, [self._make_callback(metric)], unit, text)
            case MetricKind.GAUGE:
                meter.create_observable_gauge(name, [self._make_callback(metric)], unit, text)
            case MetricKind.HISTOGRAM:
                self._histograms[metric] = meter.create_histogram(
                    name, unit, text, explicit_bucket_boundaries_advisory=metric.buckets
                )

    def _make_callback(self, metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def observe(_: Any) -> Iterable[Any]:
            return [
                metrics.Observation(number, _name_labels(metric, labels))
                for labels, number in self.read_numbers(metric)
            ]

        return observe

    def after_counting(self) -> None:
        """Record the readings of histograms, because they cannot be collected by a callback."""
        for metric, labels, readings in self.take(HISTOGRAMS):
            record, attributes = self._histograms[metric].record, _name_labels(metric, labels)
            for value in readings:
                record(value, attributes)


def _name_labels(metric: Metric, labels: Labels) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))
