"""The pages of jobs: their progress, their failed tasks, and the callback that they owe."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.exports.building import open_jobs
from holdfast.exports.columns import (
    compute_left_seconds,
    select_job_fields,
    show_per_minute,
    show_progress,
    show_status,
)
from holdfast.exports.file_names import find_store_in_folder
from holdfast.exports.model import ACTIVE, ExportJob, ExportTask, JobStatus, TaskStatus
from holdfast.exports.ports import JobStateRepository
from holdfast.queue.watch import LazyStore, Reading
from holdfast.urls import require_store
from holdfast.web.console import Console
from holdfast.web.rendering import Action, Page, View
from holdfast.web.views import read_or_explain

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
    package, parts = "holdfast.exports", ""
    names: ClassVar[Mapping[str, Any]] = {
        "compute_left_seconds": compute_left_seconds,
        "describe_heartbeats": describe_heartbeats,
        "job_fields": select_job_fields(
            *("job", "status", "progress", "per minute", "time left", "age", "last progress"),
            "callback",
        ),
        "show_per_minute": show_per_minute,
        "show_progress": show_progress,
        "show_status": show_status,
    }

    def __init__(self, store: str | JobStateRepository, console: Console) -> None:
        self._store = LazyStore(partial(open_existing_jobs, store))
        self._jobs: Reading[JobList] = Reading(self._read, console.clock)

    def list_views(self) -> Mapping[str, View]:
        """Return the views by their addresses."""
        return {"/jobs": self.show_jobs, "/jobs/job": self.show_job}

    def list_actions(self) -> Mapping[str, tuple[Action, bool]]:
        """Return none, because nothing can be done to jobs."""
        return {}

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _read(self) -> JobList:
        listed, problem = read_or_explain(self._read_list, JobList())
        return replace(listed, problem=problem)

    def _read_list(self) -> JobList:
        find, ended = self._store.get().find_by_status, (JobStatus.COMPLETED, JobStatus.FAILED)
        active = [job for status in ACTIVE for job in find(status)]
        finished = [job for status in ended for job in find(status)]
        active.sort(key=lambda job: job.created_at)
        finished.sort(key=lambda job: job.completed_at or job.updated_at, reverse=True)
        return JobList(tuple(active), tuple(finished[:MAX_FINISHED]), len(finished))

    def show_jobs(self, request: Request) -> Page:
        """Show the jobs with their progress."""
        return Page("jobs.html", {"jobs": self._jobs.get(_WAIT_SECONDS)})

    def show_job(self, request: Request) -> Page:
        """Show one job with its first failed tasks."""
        job_id = request.query_params.get("id", "")
        job, problem = read_or_explain(lambda: self._store.get().find_by_id(job_id), None)
        if job is None and not problem:
            raise HTTPException(404, "The store holds no job with that id.")
        tasks: list[ExportTask] = []
        if job is not None and job.state.failed_tasks:
            tasks, problem = read_or_explain(lambda: self._read_failed(job_id), tasks)
        return Page("job.html", {"job": job, "problem": problem, "tasks": tasks})

    def _read_failed(self, job_id: str) -> list[ExportTask]:
        store = self._store.get()
        return store.tasks(job_id, status=TaskStatus.FAILED, limit=MAX_TASKS)
