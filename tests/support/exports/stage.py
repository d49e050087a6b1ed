"""The parts of a process that works on jobs, over a store in memory."""

from collections.abc import Callable, Iterable
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
from holdfast.exports.request import JobRequest, TaskSpec
from holdfast.exports.runner import JobHeartbeats, JobRunner
from holdfast.exports.simulated_step_functions import SimulatedStepFunctions
from holdfast.exports.sqlite_jobs import MemoryJobs
from holdfast.exports.tracker import JobTracker
from holdfast.lease.clock import Clock
from holdfast.testing import ManualClock
from support.exports.inline_pool import InlinePool

JOB = "abc-123"


def make_success(task: ExportTask, n: int = 7) -> TaskResult:
    """Make the result of a task that succeeded."""
    return TaskResult(task.job_id, task.task_id, True, n)


def make_failure(task: ExportTask) -> TaskResult:
    """Make the result of a task that failed."""
    return TaskResult(task.job_id, task.task_id, False, 0, JobError("Http404", "gone"))


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

    def make_runner(
        self, heartbeats: JobHeartbeats, listing: Callable[[JobRequest], Iterable[TaskSpec]]
    ) -> JobRunner:
        """Make a runner whose pool does tasks at once."""
        self.dispatcher = TaskDispatcher(
            self.jobs,
            self.tracker,
            lambda task: {"url": task.url, "s3Key": task.key},
            clock=self.clock,
        )
        self.pool = InlinePool(self.dispatcher)
        parts = (self.jobs, self.tracker, self.dispatcher, heartbeats, listing)
        return JobRunner(*parts, self.step_functions, events=self.observed, clock=self.clock)

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
