"""The metrics of heartbeats, jobs, tasks and the pool."""

from typing import Any

from holdfast.exports import events as ev
from holdfast.telemetry.metrics import Counter, Gauge, Histogram, Reading

_HEARTBEAT_MS = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)


def _read_milliseconds(event: Any) -> Reading:
    return (), event.seconds * 1000


METRICS = (
    # -- heartbeats
    Counter(
        "heartbeat.sent",
        "Heartbeats sent, with any result.",
        ev.HeartbeatSent,
        ev.HeartbeatFailed,
    ),
    Counter("heartbeat.success", "Heartbeats that Step Functions accepted.", ev.HeartbeatSent),
    Counter(
        "heartbeat.failure", "Heartbeats refused or without a response.", ev.HeartbeatFailed
    ),
    Histogram(
        "heartbeat.duration.ms",
        "Duration of heartbeats in milliseconds.",
        (ev.HeartbeatSent, _read_milliseconds),
        (ev.HeartbeatFailed, _read_milliseconds),
        buckets=_HEARTBEAT_MS,
    ),
    Counter(
        "stepfunctions.timeout",
        "Active jobs that Step Functions timed out.",
        ev.StepFunctionsTimedOut,
    ),
    # -- jobs
    Gauge(
        "jobs.active.with_token",
        "Active jobs that need heartbeats.",
        (ev.ActiveJobs, "with_token"),
        unit="{job}",
    ),
    Gauge(
        "jobs.active.without_token",
        "Active jobs without a task token.",
        (ev.ActiveJobs, "without_token"),
        unit="{job}",
    ),
    Counter(
        "active_jobs_unknown",
        "Listings without a response of the job store.",
        ev.ActiveJobsUnknown,
    ),
    Counter("jobs.started", "Jobs received for the first time.", ev.JobStarted),
    Counter("jobs.resumed", "Jobs received again.", ev.JobResumed),
    Counter("jobs.stalled", "Jobs found without progress, once per cycle.", ev.JobStalled),
    Counter(
        "jobs.cancelled", "Jobs whose execution no longer waits for them.", ev.JobCancelled
    ),
    Counter("jobs.finished", "Finished jobs by status.", ev.JobFinished, labels=("status",)),
    Counter("tasks.completed", "Tasks completed.", ev.TaskCompleted),
    Counter("tasks.failed", "Tasks that failed for good.", ev.TaskFailed),
    Counter("tasks.again", "Tasks given to another worker.", ev.TaskRetried),
    Counter("callbacks.sent", "Callbacks that Step Functions accepted.", ev.CallbackSent),
    Counter("callbacks.failed", "Callbacks that will be repeated.", ev.CallbackFailed),
    Counter("pool_workers.started", "Worker processes started.", ev.PoolWorkerStarted),
    Counter(
        "pool_workers.ended", "Worker processes that ended or were killed.", ev.PoolWorkerEnded
    ),
)
