"""Helpers that prepare jobs for the contract tests."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import pytest

from holdfast.exports.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.exports.ports import JobStateRepository
from holdfast.testing import ManualClock

TOKEN = TaskToken("the-token-of-the-execution")
OTHER_TOKEN = TaskToken("the-token-of-a-later-execution")
GIVEN_UP = JobError("JobStalled", "no task was finished for too long")
CLOSED = JobError("TaskTimedOut", "Step Functions does not wait for this job any more")
BROKEN = JobError("DownloadFailed", "the server answered 404")
MANY = 250
"""More rows than two DynamoDB transactions take (100 each)."""


class OpenRepository(Protocol):
    """A function that opens the test's store once more; every opening has the same jobs."""

    def __call__(
        self, clock: ManualClock, keep_seconds: float | None = None
    ) -> JobStateRepository: ...


class JobPromises:
    """Promises of a job store. Each test has a store of its own, and the store's clock."""

    clock: ManualClock
    jobs: JobStateRepository

    @pytest.fixture
    def open_repository(self) -> OpenRepository:
        """Return a function that opens this test's store, which is empty at first.

        Every call opens the same store once more. The fixture closes what it opened.
        """
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def prepare_store(self, open_repository: OpenRepository) -> None:
        """Open the store once."""
        self.clock = ManualClock()
        self.jobs = open_repository(self.clock)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Check that the context leaves the job as it is."""
        before = read_job(self.jobs)
        yield
        assert read_job(self.jobs) == before


def new_job(clock: ManualClock, job_id: str = "job", **fields: Any) -> ExportJob:
    """Make a job that is not stored."""
    return ExportJob.create(job_id, "export", "user", now=clock.time(), **fields)


def make_tasks(job_id: str, count: int, first: int = 0) -> list[ExportTask]:
    """Make `count` tasks, ordered by their ids."""
    tasks = (
        ExportTask.create(job_id, f"https://files.example/{n}", f"{n:05}.bin")
        for n in range(first, first + count)
    )
    return sorted(tasks, key=lambda task: task.task_id)


def make_success(task: ExportTask, bytes_processed: int = 7) -> TaskResult:
    """Make the result of a task that succeeded."""
    return TaskResult(task.job_id, task.task_id, True, bytes_processed)


def make_failure(task: ExportTask) -> TaskResult:
    """Make the result of a task that failed."""
    return TaskResult(task.job_id, task.task_id, False, 0, BROKEN)


def read_job(repository: JobStateRepository, job_id: str = "job") -> ExportJob:
    """Return the stored job, which must exist."""
    job = repository.find_by_id(job_id)
    assert job is not None
    return job


def start_job(
    repository: JobStateRepository, clock: ManualClock, count: int = 3, **fields: Any
) -> list[ExportTask]:
    """Store a job in DOWNLOADING with so many tasks, not sealed yet; return the tasks."""
    job = new_job(clock, **fields)
    repository.save(job)
    tasks = make_tasks(job.job_id, count)
    repository.add_tasks(job.job_id, tasks)
    repository.update_job_status(job.job_id, JobStatus.DOWNLOADING)
    return tasks


def start_sealed_job(
    repository: JobStateRepository, clock: ManualClock, count: int = 3, **fields: Any
) -> list[ExportTask]:
    """Store a sealed job in DOWNLOADING with so many tasks; return the tasks."""
    tasks = start_job(repository, clock, count, **fields)
    repository.set_total_tasks(tasks[0].job_id if tasks else fields.get("job_id", "job"), count)
    return tasks


def finish_all_tasks(
    repository: JobStateRepository, clock: ManualClock, count: int = 2, **fields: Any
) -> list[ExportTask]:
    """Store a sealed job of which every task succeeded; return the tasks."""
    tasks = start_sealed_job(repository, clock, count, **fields)
    repository.record_results(
        fields.get("job_id", "job"), [make_success(task) for task in tasks]
    )
    return tasks


def decide_job(repository: JobStateRepository, clock: ManualClock, **fields: Any) -> ExportJob:
    """Store a job with a token, finished tasks and a pending callback; return it."""
    finish_all_tasks(repository, clock, **{"task_token": TOKEN} | fields)
    job = repository.claim_outcome(fields.get("job_id", "job"))
    assert job is not None
    return job


def read_counters(repository: JobStateRepository, job_id: str = "job") -> tuple[int, int]:
    """Return the numbers of completed and of failed tasks."""
    state = read_job(repository, job_id).state
    return state.completed_tasks, state.failed_tasks


def read_rows(repository: JobStateRepository, job_id: str = "job") -> list[ExportTask]:
    """Return every task row, page by page."""
    tasks: list[ExportTask] = []
    while True:
        after = tasks[-1].task_id if tasks else None
        page = repository.tasks(job_id, after=after, limit=100)
        tasks += page
        if len(page) < 100:
            return tasks


def assert_counters_match_rows(repository: JobStateRepository, job_id: str = "job") -> None:
    """Check that the counters equal the finished rows, and that the rest remains."""
    job = read_job(repository, job_id)
    tasks = read_rows(repository, job_id)
    assert read_counters(repository, job_id) == (
        _count(tasks, TaskStatus.COMPLETED),
        _count(tasks, TaskStatus.FAILED),
    )
    assert job.remaining_tasks == job.state.total_tasks - job.state.processed_tasks


def _count(tasks: Sequence[ExportTask], status: TaskStatus) -> int:
    return sum(task.status is status for task in tasks)
