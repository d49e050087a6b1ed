"""The metrics for Prometheus (extra `metrics`)."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError
from holdfast.telemetry.metrics import Counter, Gauge, Histogram, Measurements, Metric
from holdfast.version import needs_extra

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def _import_prometheus() -> ModuleType:
    with needs_extra("metrics", "metrics need prometheus-client"):
        import prometheus_client.core
    return prometheus_client


class Metrics(Measurements):
    """A subscriber that counts events. Raises ConfigError if prometheus-client is missing.

    `registry` defaults to the global registry of the client, which its exporters serve.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        super().__init__()
        self._client = _import_prometheus()
        (self._client.REGISTRY if registry is None else registry).register(self)

    def make_zero(self, metric: Metric) -> Any:
        """Return the first value of a metric. A histogram keeps no reading."""
        return _Distribution(metric.buckets) if isinstance(metric, Histogram) else 0.0

    def collect(self) -> Iterator[Any]:
        """Yield every metric with its values now. The registry calls this."""
        families = self._client.core
        makers: dict[type[Metric], Any] = {
            Counter: families.CounterMetricFamily,
            Gauge: families.GaugeMetricFamily,
            Histogram: families.HistogramMetricFamily,
        }
        for metric in self._values:
            make = makers[type(metric)]
            family = make(metric.prometheus_name, metric.text, labels=metric.labels)
            for labels, *values in self._read(metric):
                family.add_metric(labels, *values)
            yield family

    def _read(self, metric: Metric) -> Sequence[tuple[Any, ...]]:
        if not isinstance(metric, Histogram):
            return self.read_numbers(metric)
        self.count_pending()
        with self._lock:
            kept = self._values[metric].items()
            return [(labels, each.list_buckets(), each.sum) for labels, each in kept]


class _Distribution:
    """How many readings of a histogram are in each bucket, and their sum.

    The last bucket has no upper limit.
    """

    def __init__(self, limits: tuple[float, ...]) -> None:
        self._limits = limits
        self._counts = [0] * (len(limits) + 1)
        self.sum = 0.0

    def append(self, reading: float) -> None:
        self._counts[bisect_left(self._limits, reading)] += 1
        self.sum += reading

    def list_buckets(self) -> list[tuple[str, int]]:
        """Return the upper limit of each bucket, with the number of readings up to it."""
        limits = [*(str(float(limit)) for limit in self._limits), "+Inf"]
        return list(zip(limits, accumulate(self._counts), strict=True))


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
