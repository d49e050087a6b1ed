"""The pages of jobs: their progress, their failed tasks, and the callback that they owe."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.errors import HoldfastError
from holdfast.exports.building import open_jobs
from holdfast.exports.file_names import find_store_in_folder
from holdfast.exports.model import ACTIVE, ExportJob, JobStatus, TaskStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.queue.watch import Reading
from holdfast.urls import require_store
from holdfast.web.actions import Action
from holdfast.web.console import Console, LazyStore
from holdfast.web.rendering import Page, Renderer, View

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


def open_existing_jobs(store: str | JobStateRepository) -> JobStateRepository:
    """Open a store of jobs that exists. A console never creates one."""
    if isinstance(store, JobStateRepository):
        return store
    remedy = "check the name, or run an export first"
    url = find_store_in_folder(store)
    return open_jobs(require_store(url, "there is no job store", remedy))


class JobPages:
    """The views of one store of jobs, which is opened with the first read."""

    section, title = "jobs", "Jobs"
    package, parts = "holdfast.exports.pages", "job_parts.html"
    names: ClassVar[Mapping[str, Any]] = {
        "compute_pace": compute_pace,
        "describe_heartbeats": describe_heartbeats,
    }

    def __init__(self, store: str | JobStateRepository, console: Console) -> None:
        self._store = LazyStore(partial(open_existing_jobs, store))
        self._jobs: Reading[JobList] = Reading(self._read, console.clock)

    def list_views(self) -> Mapping[str, View]:
        """Return the views by their addresses."""
        return {"/jobs": self.show_jobs, "/jobs/job": self.show_job}

    def list_actions(self, renderer: Renderer) -> Mapping[str, tuple[Action, bool]]:
        """Return none, because nothing can be done to jobs."""
        return {}

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
        return Page("jobs.html", {"jobs": self._jobs.get(_WAIT_SECONDS)})

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
        return Page("job.html", {"job": job, "problem": problem, "tasks": tasks})
