"""The pages of jobs: their progress, their failed tasks, and the callback that they owe."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError
from holdfast.core.queue.watch import Reading
from holdfast.jobs.model import ACTIVE, ExportJob, JobStatus, TaskStatus
from holdfast.jobs.ports import JobStateRepository
from holdfast.web.rendering import Page
from holdfast.web.stores import LazyStore

MAX_FINISHED = 50
MAX_TASKS = 50
_WAIT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class JobList:
    """The jobs of a store: all that are active, and those that finished last."""

    active: tuple[ExportJob, ...] = ()
    finished: tuple[ExportJob, ...] = ()
    finished_count: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JobPace:
    """How fast a job is, on average, and how long it will take. None if that is unknown."""

    per_minute: float | None
    left_seconds: float | None


def compute_pace(job: ExportJob) -> JobPace:
    """Return the pace of a job from its counts and its last progress."""
    took = (job.completed_at or job.last_progress_at) - job.created_at
    if not job.state.processed_tasks or took <= 0:
        return JobPace(None, None)
    per_second = job.state.processed_tasks / took
    has_end = job.sealed and not job.terminal
    return JobPace(per_second * 60, job.remaining_tasks / per_second if has_end else None)


def describe_heartbeats(job: ExportJob) -> str:
    """Return whether Step Functions should get heartbeats for a job.

    A heartbeat changes no row, so only the service that sends them knows the last one.
    """
    if job.terminal:
        return "ended with the job"
    if job.task_token is None:
        return "none: no execution of Step Functions waits"
    return (
        "sent by the service while the job makes progress; its logs and metrics show the last"
    )


class JobPages:
    """The views of one store of jobs, which is opened with the first read."""

    def __init__(self, open_store: Callable[[], JobStateRepository], clock: Clock) -> None:
        self._store = LazyStore(open_store)
        self._jobs: Reading[JobList] = Reading(self._read, clock)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _read(self) -> JobList:
        try:
            store = self._store.get()
            active = [job for status in ACTIVE for job in store.find_by_status(status)]
            finished = [
                job
                for status in (JobStatus.COMPLETED, JobStatus.FAILED)
                for job in store.find_by_status(status)
            ]
        except (HoldfastError, OSError) as error:
            return JobList(problem=str(error))
        active.sort(key=lambda job: job.created_at)
        finished.sort(key=lambda job: job.completed_at or job.updated_at, reverse=True)
        return JobList(tuple(active), tuple(finished[:MAX_FINISHED]), len(finished))

    def show_jobs(self, request: Request) -> Page:
        """Show the jobs with their progress."""
        context = {"jobs": self._jobs.get(_WAIT_SECONDS), "section": "jobs"}
        return Page("jobs.html", {**context, "compute_pace": compute_pace})

    def show_job(self, request: Request) -> Page:
        """Show one job with its first failed tasks."""
        job_id = request.query_params.get("id", "")
        job, tasks, problem = None, [], ""
        try:
            store = self._store.get()
            job = store.find_by_id(job_id)
            if job is not None and job.state.failed_tasks:
                tasks = store.tasks(job_id, status=TaskStatus.FAILED, limit=MAX_TASKS)
        except (HoldfastError, OSError) as error:
            problem = str(error)
        if job is None and not problem:
            raise HTTPException(404, "The store holds no job with that id.")
        context = {
            "describe_heartbeats": describe_heartbeats,
            "job": job,
            "problem": problem,
            "section": "jobs",
            "tasks": tasks,
        }
        return Page("job.html", {**context, "compute_pace": compute_pace})
