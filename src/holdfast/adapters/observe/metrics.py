"""The metrics for Prometheus (`pip install 'holdfast[metrics]'`)."""

from collections.abc import Iterator
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.adapters.observe.measurements import Measurements
from holdfast.adapters.observe.metric import Metric, MetricKind
from holdfast.adapters.observe.metric_table import METRICS
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def _import_prometheus() -> ModuleType:
    try:
        import prometheus_client.core
    except ImportError:
        raise ConfigError(
            "metrics need prometheus-client, which is not installed: "
            "pip install 'holdfast[metrics]'"
        ) from None
    return prometheus_client


class Metrics(Measurements):
    """A subscriber that counts events. Raises ConfigError if prometheus-client is missing.

    `registry` defaults to the global registry of the client, which its exporters serve.
    """

    def __init__(
        self, registry: "CollectorRegistry | None" = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(clock)
        self._client = _import_prometheus()
        (self._client.REGISTRY if registry is None else registry).register(self)

    def collect(self) -> Iterator[Any]:
        """Yield every metric with its values now. The registry calls this."""
        for metric in METRICS:
            if metric.kind is MetricKind.HISTOGRAM:
                yield self._collect_distributions(metric)
            else:
                yield self._collect_numbers(metric)

    def _collect_numbers(self, metric: Metric) -> Any:
        families = self._client.core
        is_counter = metric.kind is MetricKind.COUNTER
        make = families.CounterMetricFamily if is_counter else families.GaugeMetricFamily
        family = make(metric.prometheus_name, metric.text, labels=metric.labels)
        for labels, number in self.read_numbers(metric):
            family.add_metric(labels, number)
        return family

    def _collect_distributions(self, metric: Metric) -> Any:
        family = self._client.core.HistogramMetricFamily(
            metric.prometheus_name, metric.text, labels=metric.labels
        )
        for labels, counts, total in self.read_distributions(metric):
            family.add_metric(labels, _list_buckets(metric, counts), total)
        return family


def _list_buckets(metric: Metric, counts: list[int]) -> list[tuple[str, int]]:
    """Return the upper limit of each bucket, with the number of readings up to it."""
    limits = [*(str(float(limit)) for limit in metric.buckets), "+Inf"]
    return list(zip(limits, accumulate(counts), strict=True))


class MetricsServer:
    """Serves `Metrics` at http://host:port/metrics until closed."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        client = _import_prometheus()
        registry = client.CollectorRegistry()
        self.subscriber = Metrics(registry)
        try:
            self._server: Any
            self._server, self._thread = client.start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}; "
                "choose another --metrics-port"
            ) from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop the server and wait for its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
