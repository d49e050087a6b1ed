"""The parts of a process that works on jobs, over a store in memory."""

from threading import Event as Flag
from typing import Any

from contracts.jobs.support import make_success, read_job, start_job
from holdfast.events import Event, Events
from holdfast.exports.dispatcher import TaskDispatcher
from holdfast.exports.model import ExportJob, ExportTask, TaskResult, TaskToken
from holdfast.exports.runner import JobHeartbeats, JobRunner, Listing, NoHeartbeats
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.exports.tracker import JobTracker
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.testing import ManualClock
from support.exports.inline_pool import Do, InlinePool, succeed
from support.exports.simulated_step_functions import SimulatedStepFunctions

JOB = "abc-123"
MAX_ROUNDS = 100


def make_runner(
    jobs: Any,
    tracker: JobTracker,
    step_functions: Any = None,
    *,
    do: Do = succeed,
    listing: Listing = lambda request: iter(()),
    heartbeats: JobHeartbeats | None = None,
    events: Events | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **options: float,
) -> tuple[JobRunner, TaskDispatcher, InlinePool]:
    """Make a runner whose pool calls `do` for each task at once; options are those of the
    dispatcher."""
    dispatcher = TaskDispatcher(
        jobs, tracker, make_payload, events=events, clock=clock, **options
    )
    heartbeats = heartbeats or NoHeartbeats()
    parts = (jobs, tracker, dispatcher, heartbeats, listing, step_functions)
    runner = JobRunner(*parts, events=events, clock=clock)
    return runner, dispatcher, InlinePool(dispatcher, do)


class BoundedLease(Flag):
    """A lease that is not lost. The runner asks in each round, and a job needs few of them."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def is_set(self) -> bool:
        self._asked += 1
        assert self._asked <= MAX_ROUNDS, "the job never ends"
        return super().is_set()


def make_payload(task: ExportTask) -> dict[str, object]:
    """Return what a worker gets for a task."""
    return {"url": task.url, "s3Key": task.key}


class JobStage:
    """A store, a simulated Step Functions and a tracker, and the events they emit."""

    def __init__(
        self,
        clock: Clock | None = None,
        step_functions: type[SimulatedStepFunctions] = SimulatedStepFunctions,
    ) -> None:
        self.clock: Any = clock or ManualClock()
        self.events: list[Event] = []
        self.observed = Events(self.events.append)
        self.jobs = MemoryJobs(clock=self.clock)
        self.step_functions: Any = step_functions(self.clock)
        self.tracker = JobTracker(self.jobs, self.step_functions, events=self.observed)

    def make_runner(self, heartbeats: JobHeartbeats, listing: Listing) -> JobRunner:
        """Make a runner whose pool does tasks at once."""
        runner, self.dispatcher, self.pool = make_runner(
            self.jobs,
            self.tracker,
            self.step_functions,
            listing=listing,
            heartbeats=heartbeats,
            events=self.observed,
            clock=self.clock,
            pause_seconds=0.01,
        )
        return runner

    def begin(
        self, tasks: int = 1, *, job_id: str = JOB, token: TaskToken | None = None
    ) -> list[ExportTask]:
        """Store a job in DOWNLOADING with so many tasks, and return the tasks."""
        return start_job(self.jobs, self.clock, tasks, job_id=job_id, task_token=token)

    def begin_sealed(self, job_id: str = JOB, *, token: TaskToken | None = None) -> TaskResult:
        """Store a sealed job of one task, and return the task's result, not counted yet."""
        [task] = self.begin(job_id=job_id, token=token)
        self.jobs.set_total_tasks(job_id, 1)
        return make_success(task)

    def read_job(self, job_id: str = JOB) -> ExportJob:
        """Return the stored job."""
        return read_job(self.jobs, job_id)

    def list_events(self, kind: type[Event]) -> list[Event]:
        """Return the emitted events of that type."""
        return [event for event in self.events if isinstance(event, kind)]
