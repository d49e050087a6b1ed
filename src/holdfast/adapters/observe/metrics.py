"""Events as Prometheus metrics (`pip install 'holdfast[metrics]'`)."""

from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.conversations import events as cv
from holdfast.core import events as ev
from holdfast.core.errors import ConfigError
from holdfast.core.events import Event
from holdfast.jobs import events as jv

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

# One counter for each of these events. Those of queues have the queue as a label, and those in
# `_LABELS` have a field.
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
    jv.HeartbeatSent: ("heartbeat_success", "Heartbeats that Step Functions accepted."),
    jv.HeartbeatFailed: ("heartbeat_failure", "Heartbeats refused or without a response."),
    jv.StepFunctionsTimedOut: (
        "stepfunctions_timeout",
        "Active jobs that Step Functions timed out.",
    ),
    jv.JobStarted: ("jobs_started", "Jobs received for the first time."),
    jv.JobResumed: ("jobs_resumed", "Jobs received again."),
    jv.JobStalled: ("jobs_stalled", "Jobs found without progress, once per cycle."),
    jv.JobCancelled: ("jobs_cancelled", "Jobs whose execution no longer waits for them."),
    jv.TaskCompleted: ("tasks_completed", "Tasks completed."),
    jv.TaskFailed: ("tasks_failed", "Tasks that failed for good."),
    jv.TaskRetried: ("tasks_again", "Tasks given to another worker."),
    jv.CallbackSent: ("callbacks_sent", "Callbacks that Step Functions accepted."),
    jv.CallbackFailed: ("callbacks_failed", "Callbacks that will be repeated."),
    jv.ActiveJobsUnknown: (
        "active_jobs_unknown",
        "Listings without a response of the job store.",
    ),
    jv.PoolWorkerStarted: ("pool_workers_started", "Worker processes started."),
    jv.PoolWorkerEnded: ("pool_workers_ended", "Worker processes that ended or were killed."),
    cv.InboundRefused: ("chat_refused", "Inbound messages that could not be answered."),
    cv.WindowProlonged: (
        "chat_prolonged",
        "Windows kept open because the customer was typing.",
    ),
    cv.LockBusy: ("chat_busy", "Triggers of a conversation that is being answered."),
    cv.LockTakenOver: ("chat_taken_over", "Expired locks taken over from another worker."),
    cv.TurnFinished: ("chat_turns", "Batches answered, with reply and history written."),
    cv.BatchFailed: ("chat_retries", "Batches that will be tried again."),
    cv.BatchParked: ("chat_parked", "Batches parked for an operator."),
    cv.SentNotRecorded: ("chat_unrecorded", "Replies sent whose history could not be written."),
    jv.JobFinished: ("jobs_finished", "Finished jobs by status."),
    cv.SendInDoubt: (
        "chat_in_doubt",
        "Replies of which it was unknown whether they were sent, by outcome.",
    ),
}
# Counters of these events have the value of a field as a label.
_LABELS: dict[type[Event], str] = {jv.JobFinished: "status", cv.SendInDoubt: "outcome"}
# The latest value of a field.
_MEASURED: dict[tuple[type[Event], str], tuple[str, str]] = {
    (jv.ActiveJobs, "with_token"): (
        "jobs_active_with_token",
        "Active jobs that need heartbeats.",
    ),
    (jv.ActiveJobs, "without_token"): (
        "jobs_active_without_token",
        "Active jobs without a task token.",
    ),
    (cv.SweepFinished, "waiting"): ("chat_waiting", "Conversations with staged messages."),
    (cv.SweepFinished, "oldest_seconds"): ("chat_oldest_seconds", "Age of the oldest of them."),
}
# Events after which a message is no longer held.
_END_EVENTS = ev.Completed | ev.Retried | ev.DeadLettered | ev.GivenBack | ev.MessageLeaseLost
_ATTEMPT_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 12 * 3600)
_LATENESS = (0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)
_HEARTBEAT_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)
_WRITER_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)


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
        counter = partial(client.Counter, namespace="holdfast", registry=registry)
        gauge = partial(client.Gauge, namespace="holdfast", registry=registry)
        histogram = partial(client.Histogram, namespace="holdfast", registry=registry)
        self._counters: dict[type[Event], tuple[str | None, Any]] = {}
        for kind, (name, text) in _COUNTED.items():
            label = "queue" if issubclass(kind, ev.QueueEvent) else _LABELS.get(kind)
            self._counters[kind] = label, counter(name, text, [label] if label else [])
        self._gauges: dict[type[Event], list[tuple[str, Any]]] = {}
        for (kind, field), (name, text) in _MEASURED.items():
            self._gauges.setdefault(kind, []).append((field, gauge(name, text)))
        self._held_by_queue: dict[str, set[tuple[str, int]]] = {}
        self._held = gauge("held", "Messages that this process holds now.", ["queue"])
        self._attempt_seconds = histogram(
            "attempt_seconds",
            "How long completed attempts took.",
            ["queue"],
            buckets=_ATTEMPT_SECONDS,
        )
        self._late = histogram(
            "renewal_late_seconds", "How late renewals were.", ["queue"], buckets=_LATENESS
        )
        self._heartbeats = counter("heartbeat_sent", "Heartbeats sent, with any result.")
        self._heartbeat_ms = histogram(
            "heartbeat_duration_ms",
            "Duration of heartbeats in milliseconds.",
            buckets=_HEARTBEAT_MS,
        )
        self._staged = counter(
            "chat_staged", "Inbound messages staged, once each.", ["channel"]
        )
        self._tokens = counter("chat_tokens", "Tokens used for replies.", ["kind"])
        self._writer_seconds = histogram(
            "chat_writer_seconds", "Duration of writing replies.", buckets=_WRITER_SECONDS
        )

    def __call__(self, event: Event) -> None:
        kind = type(event)
        if kind in self._counters:
            label, counter = self._counters[kind]
            (counter.labels(getattr(event, label)) if label else counter).inc()
        for field, gauge in self._gauges.get(kind, ()):
            gauge.set(getattr(event, field))
        self._observe(event)
        if isinstance(event, ev.Claimed | _END_EVENTS):
            self._update_held(event)

    def _observe(self, event: Event) -> None:
        match event:
            case ev.Completed(seconds=seconds):
                self._attempt_seconds.labels(event.queue).observe(seconds)
            case ev.LeaseRenewed(late_seconds=late):
                self._late.labels(event.queue).observe(late)
            case jv.HeartbeatSent(seconds=seconds) | jv.HeartbeatFailed(seconds=seconds):
                self._heartbeats.inc()
                self._heartbeat_ms.observe(seconds * 1000)
            case cv.FragmentStaged(channel=channel, new=True):
                self._staged.labels(channel).inc()
            case cv.ReplyWritten(seconds=seconds):
                self._tokens.labels("prompt").inc(event.prompt_tokens)
                self._tokens.labels("completion").inc(event.completion_tokens)
                self._writer_seconds.observe(seconds)

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
