"""The events of jobs, for logs and metrics.

As with all events, none contains a token, a message body or the text of a foreign error.
"""

from __future__ import annotations  # keeps annotations as text, which costs nothing

from logging import DEBUG, ERROR, WARNING

from holdfast.events import Event


class JobEvent(Event):
    """An event of one job."""

    job_id: str


class JobStarted(JobEvent):
    """The job's message was received for the first time."""

    with_token: bool


class JobResumed(JobEvent, level=WARNING):
    """The job's message was received again: after a crash, a lost lease, or as a duplicate."""

    status: str


class JobSealed(JobEvent):
    """All tasks of the job are listed."""

    total_tasks: int


class TaskCompleted(JobEvent):
    """A task was completed and counted."""

    task_id: str
    bytes_processed: int


class TaskFailed(JobEvent, level=WARNING):
    """A task failed for good and was counted."""

    task_id: str
    code: str


class TaskRetried(JobEvent, level=WARNING):
    """The task's worker died, hung or ran out of memory, so another worker does the task."""

    task_id: str
    attempt: int
    reason: str


class JobFinished(JobEvent):
    """The job is terminal, and its outcome was sent if it has a token."""

    status: str
    completed_tasks: int
    failed_tasks: int
    code: str | None


class JobStalled(JobEvent, level=ERROR):
    """No task was finished for too long, so the job is failed despite its heartbeats."""

    seconds: float


class JobCancelled(JobEvent, level=WARNING):
    """The job's outcome is not wanted any more, so its tasks are dropped."""

    code: str


class JobNotReconciled(JobEvent):
    """The reconciler could not check the job; the next pass tries again."""

    error: str


class StepFunctionsTimedOut(JobEvent, level=ERROR):
    """Step Functions gave up on a job that was still running."""

    code: str


class HeartbeatSent(JobEvent, level=DEBUG):
    """Step Functions accepted a heartbeat."""

    completed_tasks: int
    total_tasks: int
    percent: int
    seconds: float


class HeartbeatFailed(JobEvent, level=WARNING):
    """A heartbeat failed with the service's error `code`; the job goes on regardless."""

    code: str
    seconds: float


class CallbackSent(JobEvent):
    """Step Functions accepted the job's outcome."""

    status: str


class CallbackFailed(JobEvent, level=WARNING):
    """The outcome was not sent; it stays in the outbox and is tried again."""

    code: str


class OrchestratorStarted(Event):
    """The heartbeat orchestrator started."""

    interval_seconds: float


class OrchestratorDisabled(Event, level=WARNING):
    """STEP_FUNCTIONS_HEARTBEAT_ENABLED is off, so Step Functions will time out long jobs."""


class OrchestratorStopping(Event):
    """The heartbeat orchestrator is stopping, with so many heartbeats in flight."""

    in_flight: int


class OrchestratorStopped(Event):
    """No heartbeat is in flight, and none will be sent."""


class ActiveJobs(Event):
    """How many active jobs the orchestrator listed at the beginning of a cycle."""

    with_token: int
    without_token: int

    def get_level(self) -> int:
        """Return DEBUG if no job needs a heartbeat: an idle process emits one per cycle."""
        return DEBUG if self.with_token == 0 else super().get_level()


class ActiveJobsUnknown(Event, level=ERROR):
    """The store did not respond; jobs known from before still get heartbeats."""

    error: str
    in_a_row: int


class PoolWorkerStarted(Event):
    """A worker process was started."""

    pid: int


class PoolWorkerEnded(Event, level=WARNING):
    """A worker process ended. It is replaced, and its tasks are done again."""

    pid: int
    reason: str


class IntervalTight(Event, level=WARNING):
    """The interval is long for HeartbeatSeconds.

    If one heartbeat fails and no retry succeeds within the interval, the job ends.
    """

    interval_seconds: float
    heartbeat_timeout_seconds: float
