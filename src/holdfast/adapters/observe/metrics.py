"""Events as Prometheus metrics (`pip install 'holdfast[metrics]'`)."""

from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.adapters.observe.chat_metrics import ChatMetrics
from holdfast.adapters.observe.job_metrics import JobMetrics
from holdfast.core import events as ev
from holdfast.core.errors import ConfigError
from holdfast.core.events import Event

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_COUNTED: dict[type[Event], tuple[str, str]] = {
    ev.Claimed: ("claimed", "Messages claimed from the queue."),
    ev.Completed: ("completed", "Messages finished."),
    ev.Retried: ("retried", "Attempts that failed and will be repeated."),
    ev.DeadLettered: ("dead_lettered", "Messages dead-lettered, with a reason."),
    ev.GivenBack: ("given_back", "Messages given back uncharged at shutdown."),
    ev.TakenOver: ("taken_over", "Expired leases of other workers taken over."),
    ev.LeaseAtRisk: ("leases_at_risk", "Renewals and settlements without a response."),
    ev.MessageLeaseLost: ("leases_lost", "Leases lost while this process held them."),
    ev.ChildKilled: ("children_killed", "Child processes killed by the watchdog."),
    ev.SchemaTooNew: ("schema_too_new", "Messages left for newer code."),
    ev.PollFailed: ("polls_failed", "Polls that failed."),
}
# Events after which a message is no longer held.
_END_EVENTS = ev.Completed | ev.Retried | ev.DeadLettered | ev.GivenBack | ev.MessageLeaseLost
_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 12 * 3600)
_LATENESS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)


def _import_prometheus() -> ModuleType:
    try:
        import prometheus_client
    except ImportError:
        raise ConfigError(
            "metrics need prometheus-client, which is not installed: "
            "pip install 'holdfast[metrics]'"
        ) from None
    return prometheus_client


class Metrics:
    """A subscriber that counts events. Raises ConfigError if prometheus-client is missing.

    `registry` defaults to the global registry of the client, which its exporters serve.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None) -> None:
        client = _import_prometheus()
        registry = client.REGISTRY if registry is None else registry
        self._counters = {
            kind: client.Counter(f"holdfast_{name}", text, ["queue"], registry=registry)
            for kind, (name, text) in _COUNTED.items()
        }
        self._held_by_queue: dict[str, set[tuple[str, int]]] = {}
        self._held = client.Gauge(
            "holdfast_held",
            "Messages that this process holds now.",
            ["queue"],
            registry=registry,
        )
        self._seconds = client.Histogram(
            "holdfast_attempt_seconds",
            "How long completed attempts took.",
            ["queue"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._late = client.Histogram(
            "holdfast_renewal_late_seconds",
            "How late renewals were.",
            ["queue"],
            buckets=_LATENESS,
            registry=registry,
        )
        self._job_metrics = JobMetrics(client, registry)
        self._chat_metrics = ChatMetrics(client, registry)

    def __call__(self, event: Event) -> None:
        if isinstance(event, ev.QueueEvent):
            self._count_queue_event(event)
        else:
            self._job_metrics(event)
            self._chat_metrics(event)

    def _count_queue_event(self, event: ev.QueueEvent) -> None:
        queue = event.queue
        if (counter := self._counters.get(type(event))) is not None:
            counter.labels(queue).inc()
        match event:
            case ev.Completed(seconds=seconds):
                self._seconds.labels(queue).observe(seconds)
            case ev.LeaseRenewed(late_seconds=late):
                self._late.labels(queue).observe(late)
        if isinstance(event, ev.Claimed | _END_EVENTS):
            self._update_held(event)

    def _update_held(self, event: ev.MessageEvent) -> None:
        """Set the gauge from the set of held messages.

        Counting up and down would be wrong, because a lost lease may end twice, and a
        message that the queue itself dead-letters was never held.
        """
        held = self._held_by_queue.setdefault(event.queue, set())
        if isinstance(event, ev.Claimed):
            held.add((event.message_id, event.attempt))
        else:
            held.discard((event.message_id, event.attempt))
        self._held.labels(event.queue).set(len(held))


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
