"""The parts of a process that works on jobs, over a store in memory."""

from threading import Event as Flag
from typing import Any

from holdfast.events import Event, Events
from holdfast.exports.dispatcher import TaskDispatcher
from holdfast.exports.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
    TaskToken,
)
from holdfast.exports.runner import JobHeartbeats, JobRunner, Listing
from holdfast.exports.simulated_step_functions import SimulatedStepFunctions
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.exports.tracker import JobTracker
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.testing import ManualClock
from support.exports.inline_pool import Do, InlinePool, SilentHeartbeats, succeed

JOB = "abc-123"
MAX_ROUNDS = 100


def make_success(task: ExportTask, n: int = 7) -> TaskResult:
    """Make the result of a task that succeeded."""
    return TaskResult(task.job_id, task.task_id, True, n)


def make_failure(task: ExportTask) -> TaskResult:
    """Make the result of a task that failed."""
    return TaskResult(task.job_id, task.task_id, False, 0, JobError("Http404", "gone"))


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
    dispatcher = TaskDispatcher(jobs, tracker, make_payload, clock=clock, **options)
    heartbeats = heartbeats or SilentHeartbeats()
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
        now = self.clock.time()
        self.jobs.save(ExportJob.create(job_id, "e", "u", task_token=token, now=now))
        urls = [f"https://files.example/{n}" for n in range(tasks)]
        created = [ExportTask.create(job_id, url, f"{n}") for n, url in enumerate(urls)]
        self.jobs.add_tasks(job_id, created)
        self.jobs.update_job_status(job_id, JobStatus.DOWNLOADING)
        return created

    def read_job(self, job_id: str = JOB) -> ExportJob:
        """Return the stored job."""
        job = self.jobs.find_by_id(job_id)
        assert job is not None
        return job

    def list_events(self, kind: type[Event]) -> list[Event]:
        """Return the emitted events of that type."""
        return [event for event in self.events if isinstance(event, kind)]
