"""Events of jobs as Prometheus metrics."""

from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.core.events import Event
from holdfast.jobs import events as ev

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_COUNTED: dict[type[Event], tuple[str, str]] = {
    ev.HeartbeatSent: ("heartbeat_success", "Heartbeats that Step Functions accepted."),
    ev.HeartbeatFailed: ("heartbeat_failure", "Heartbeats refused or without a response."),
    ev.StepFunctionsTimedOut: (
        "stepfunctions_timeout",
        "Active jobs that Step Functions timed out.",
    ),
    ev.JobStarted: ("jobs_started", "Jobs received for the first time."),
    ev.JobResumed: ("jobs_resumed", "Jobs received again."),
    ev.JobStalled: ("jobs_stalled", "Jobs found without progress, once per cycle."),
    ev.JobCancelled: ("jobs_cancelled", "Jobs whose execution no longer waits for them."),
    ev.TaskCompleted: ("tasks_completed", "Tasks completed."),
    ev.TaskFailed: ("tasks_failed", "Tasks that failed for good."),
    ev.TaskRetried: ("tasks_again", "Tasks given to another worker."),
    ev.CallbackSent: ("callbacks_sent", "Callbacks that Step Functions accepted."),
    ev.CallbackFailed: ("callbacks_failed", "Callbacks that will be repeated."),
    ev.ActiveJobsUnknown: (
        "active_jobs_unknown",
        "Listings without a response of the job store.",
    ),
    ev.PoolWorkerStarted: ("pool_workers_started", "Worker processes started."),
    ev.PoolWorkerEnded: ("pool_workers_ended", "Worker processes that ended or were killed."),
}
_MILLISECONDS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)


class JobMetrics:
    """A subscriber that counts events of jobs."""

    def __init__(self, client: ModuleType, registry: "CollectorRegistry") -> None:
        self._counters = {
            kind: client.Counter(f"holdfast_{name}", text, registry=registry)
            for kind, (name, text) in _COUNTED.items()
        }
        self._sent = client.Counter(
            "holdfast_heartbeat_sent", "Heartbeats sent, with any result.", registry=registry
        )
        self._duration = client.Histogram(
            "holdfast_heartbeat_duration_ms",
            "Duration of heartbeats in milliseconds.",
            buckets=_MILLISECONDS,
            registry=registry,
        )
        self._with_token = client.Gauge(
            "holdfast_jobs_active_with_token",
            "Active jobs that need heartbeats.",
            registry=registry,
        )
        self._without_token = client.Gauge(
            "holdfast_jobs_active_without_token",
            "Active jobs without a task token.",
            registry=registry,
        )
        self._finished = client.Counter(
            "holdfast_jobs_finished", "Finished jobs by status.", ["status"], registry=registry
        )

    def __call__(self, event: Event) -> None:
        if (counter := self._counters.get(type(event))) is not None:
            counter.inc()
        match event:
            case ev.HeartbeatSent(seconds=seconds) | ev.HeartbeatFailed(seconds=seconds):
                self._sent.inc()
                self._duration.observe(seconds * 1000)
            case ev.ActiveJobs(with_token=with_token, without_token=without_token):
                self._with_token.set(with_token)
                self._without_token.set(without_token)
            case ev.JobFinished(status=status):
                self._finished.labels(status).inc()
