"""What happens to jobs, told to whoever subscribes: logs and metrics.

As with all events, nothing in here is a token, a body or the text of somebody's error.
"""

from dataclasses import dataclass

from holdfast.core.events import Event


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    job_id: str


@dataclass(frozen=True, slots=True)
class JobStarted(JobEvent):
    """Its message came for the first time."""

    with_token: bool


@dataclass(frozen=True, slots=True)
class JobResumed(JobEvent):
    """Its message came again: a crash, a lost lease, or a duplicate."""

    status: str


@dataclass(frozen=True, slots=True)
class JobSealed(JobEvent):
    total_tasks: int


@dataclass(frozen=True, slots=True)
class TaskCompleted(JobEvent):
    task_id: str
    bytes_processed: int


@dataclass(frozen=True, slots=True)
class TaskFailed(JobEvent):
    task_id: str
    code: str


@dataclass(frozen=True, slots=True)
class TaskRetried(JobEvent):
    """Its worker died, hung or ran out of memory; somebody else does it."""

    task_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class JobFinished(JobEvent):
    """The job is terminal; whoever waited for it was told."""

    status: str
    completed_tasks: int
    failed_tasks: int
    code: str | None


@dataclass(frozen=True, slots=True)
class JobStalled(JobEvent):
    """No task was finished for too long: given up, no heartbeat hides it any more."""

    seconds: float


@dataclass(frozen=True, slots=True)
class JobCancelled(JobEvent):
    """Nobody waits for it any more: its tasks are dropped."""

    code: str


@dataclass(frozen=True, slots=True)
class JobNotReconciled(JobEvent):
    """It could not be looked after this time; the next pass tries again."""

    error: str


@dataclass(frozen=True, slots=True)
class StepFunctionsTimedOut(JobEvent):
    """Step Functions gave up on a job that was being worked on."""

    code: str


@dataclass(frozen=True, slots=True)
class HeartbeatSent(JobEvent):
    completed_tasks: int
    total_tasks: int
    percent: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HeartbeatFailed(JobEvent):
    """`code` is what the service answered; the job goes on regardless."""

    code: str
    seconds: float


@dataclass(frozen=True, slots=True)
class CallbackSent(JobEvent):
    status: str


@dataclass(frozen=True, slots=True)
class CallbackFailed(JobEvent):
    """It stays in the outbox and is tried again."""

    code: str


@dataclass(frozen=True, slots=True)
class OrchestratorStarted(Event):
    interval_seconds: float


@dataclass(frozen=True, slots=True)
class OrchestratorDisabled(Event):
    """By STEP_FUNCTIONS_HEARTBEAT_ENABLED: Step Functions will time out longer jobs."""


@dataclass(frozen=True, slots=True)
class OrchestratorStopping(Event):
    in_flight: int


@dataclass(frozen=True, slots=True)
class OrchestratorStopped(Event):
    """No beat is under way, and none will be."""


@dataclass(frozen=True, slots=True)
class ActiveJobs(Event):
    """What the orchestrator found at the beginning of a cycle."""

    with_token: int
    without_token: int


@dataclass(frozen=True, slots=True)
class ActiveJobsUnknown(Event):
    """The store did not answer; those known from before are beaten."""

    error: str
    in_a_row: int


@dataclass(frozen=True, slots=True)
class PoolWorkerStarted(Event):
    pid: int


@dataclass(frozen=True, slots=True)
class PoolWorkerEnded(Event):
    """It is replaced, and what it was doing is done again."""

    pid: int
    reason: str


@dataclass(frozen=True, slots=True)
class IntervalTight(Event):
    """One failed beat that is not made up for within the interval ends the job."""

    interval_seconds: float
    heartbeat_timeout_seconds: float
