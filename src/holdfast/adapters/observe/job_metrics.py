"""What happens to jobs, as Prometheus metrics."""

from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.core.events import Event
from holdfast.jobs import events as ev

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_COUNTED: dict[type[Event], tuple[str, str]] = {
    ev.HeartbeatSent: ("heartbeat_success", "Heartbeats that Step Functions took."),
    ev.HeartbeatFailed: ("heartbeat_failure", "Heartbeats refused or without an answer."),
    ev.StepFunctionsTimedOut: (
        "stepfunctions_timeout",
        "Jobs being worked on that Step Functions gave up.",
    ),
    ev.JobStarted: ("jobs_started", "Jobs received for the first time."),
    ev.JobResumed: ("jobs_resumed", "Jobs received again."),
    ev.JobStalled: ("jobs_stalled", "Jobs found without progress, once per cycle."),
    ev.JobCancelled: ("jobs_cancelled", "Jobs nobody waited for any more."),
    ev.TaskCompleted: ("tasks_completed", "Tasks done."),
    ev.TaskFailed: ("tasks_failed", "Tasks given up."),
    ev.TaskRetried: ("tasks_again", "Tasks given to another worker."),
    ev.CallbackSent: ("callbacks_sent", "Answers that Step Functions took."),
    ev.CallbackFailed: ("callbacks_failed", "Answers to be tried again."),
    ev.ActiveJobsUnknown: ("active_jobs_unknown", "Listings the job store did not answer."),
    ev.PoolWorkerStarted: ("pool_workers_started", "Worker processes started."),
    ev.PoolWorkerEnded: ("pool_workers_ended", "Worker processes that ended or were ended."),
}
_MILLISECONDS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)


class JobMetrics:
    """A subscriber that counts what happens to jobs."""

    def __init__(self, client: ModuleType, registry: "CollectorRegistry") -> None:
        self._counters = {
            kind: client.Counter(f"holdfast_{name}", text, registry=registry)
            for kind, (name, text) in _COUNTED.items()
        }
        self._sent = client.Counter(
            "holdfast_heartbeat_sent", "Heartbeats tried.", registry=registry
        )
        self._duration = client.Histogram(
            "holdfast_heartbeat_duration_ms",
            "How long heartbeats took, in milliseconds.",
            buckets=_MILLISECONDS,
            registry=registry,
        )
        self._with_token = client.Gauge(
            "holdfast_jobs_active_with_token", "Active jobs to beat.", registry=registry
        )
        self._without_token = client.Gauge(
            "holdfast_jobs_active_without_token",
            "Active jobs that nobody waits for.",
            registry=registry,
        )
        self._finished = client.Counter(
            "holdfast_jobs_finished", "Jobs by how they ended.", ["status"], registry=registry
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
