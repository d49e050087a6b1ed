"""The events of jobs, for logs and metrics.

As with all events, none contains a token, a message body or the text of a foreign error.
"""

from dataclasses import dataclass

from holdfast.core.events import Event


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """An event of one job."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobStarted(JobEvent):
    """The job's message was received for the first time."""

    with_token: bool


@dataclass(frozen=True, slots=True)
class JobResumed(JobEvent):
    """The job's message was received again: after a crash, a lost lease, or as a duplicate."""

    status: str


@dataclass(frozen=True, slots=True)
class JobSealed(JobEvent):
    """All tasks of the job are listed."""

    total_tasks: int


@dataclass(frozen=True, slots=True)
class TaskCompleted(JobEvent):
    """A task was completed and counted."""

    task_id: str
    bytes_processed: int


@dataclass(frozen=True, slots=True)
class TaskFailed(JobEvent):
    """A task failed for good and was counted."""

    task_id: str
    code: str


@dataclass(frozen=True, slots=True)
class TaskRetried(JobEvent):
    """The task's worker died, hung or ran out of memory, so another worker does the task."""

    task_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobFinished(JobEvent):
    """The job is terminal, and its outcome was sent if it has a token."""

    status: str
    completed_tasks: int
    failed_tasks: int
    code: str | None


@dataclass(frozen=True, slots=True)
class JobStalled(JobEvent):
    """No task was finished for too long, so the job is failed despite its heartbeats."""

    seconds: float


@dataclass(frozen=True, slots=True)
class JobCancelled(JobEvent):
    """The job's outcome is not wanted any more, so its tasks are dropped."""

    code: str


@dataclass(frozen=True, slots=True)
class JobNotReconciled(JobEvent):
    """The reconciler could not check the job; the next pass tries again."""

    error: str


@dataclass(frozen=True, slots=True)
class StepFunctionsTimedOut(JobEvent):
    """Step Functions gave up on a job that was still running."""

    code: str


@dataclass(frozen=True, slots=True)
class HeartbeatSent(JobEvent):
    """Step Functions accepted a heartbeat."""

    completed_tasks: int
    total_tasks: int
    percent: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HeartbeatFailed(JobEvent):
    """A heartbeat failed with the service's error `code`; the job goes on regardless."""

    code: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CallbackSent(JobEvent):
    """Step Functions accepted the job's outcome."""

    status: str


@dataclass(frozen=True, slots=True)
class CallbackFailed(JobEvent):
    """The outcome was not sent; it stays in the outbox and is tried again."""

    code: str


@dataclass(frozen=True, slots=True)
class OrchestratorStarted(Event):
    """The heartbeat orchestrator started."""

    interval_seconds: float


@dataclass(frozen=True, slots=True)
class OrchestratorDisabled(Event):
    """STEP_FUNCTIONS_HEARTBEAT_ENABLED is off, so Step Functions will time out long jobs."""


@dataclass(frozen=True, slots=True)
class OrchestratorStopping(Event):
    """The heartbeat orchestrator is stopping, with so many heartbeats in flight."""

    in_flight: int


@dataclass(frozen=True, slots=True)
class OrchestratorStopped(Event):
    """No heartbeat is in flight, and none will be sent."""


@dataclass(frozen=True, slots=True)
class ActiveJobs(Event):
    """How many active jobs the orchestrator listed at the beginning of a cycle."""

    with_token: int
    without_token: int


@dataclass(frozen=True, slots=True)
class ActiveJobsUnknown(Event):
    """The store did not respond; jobs known from before still get heartbeats."""

    error: str
    in_a_row: int


@dataclass(frozen=True, slots=True)
class PoolWorkerStarted(Event):
    """A worker process was started."""

    pid: int


@dataclass(frozen=True, slots=True)
class PoolWorkerEnded(Event):
    """A worker process ended. It is replaced, and its tasks are done again."""

    pid: int
    reason: str


@dataclass(frozen=True, slots=True)
class IntervalTight(Event):
    """The interval is long for HeartbeatSeconds.

    If one heartbeat fails and no retry succeeds within the interval, the job ends.
    """

    interval_seconds: float
    heartbeat_timeout_seconds: float
