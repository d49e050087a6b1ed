"""Words the promises are written in."""

from collections.abc import Sequence
from typing import Any, Protocol

from holdfast.jobs.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobStatus,
    TaskResult,
    TaskStatus,
    TaskToken,
)
from holdfast.jobs.ports import JobStateRepository
from holdfast.testing import ManualClock

TOKEN = TaskToken("the-token-of-the-execution")
OTHER_TOKEN = TaskToken("the-token-of-a-later-execution")
GIVEN_UP = JobError("JobStalled", "no task was finished for too long")
BROKEN = JobError("DownloadFailed", "the server answered 404")
MANY = 250
"""More rows than one DynamoDB transaction takes (100), and more than two of them."""


class OpenRepository(Protocol):
    """Open the test's store once more: every opening sees the same jobs."""

    def __call__(
        self, clock: ManualClock, keep_seconds: float | None = None
    ) -> JobStateRepository: ...


def new_job(clock: ManualClock, job_id: str = "job", **fields: Any) -> ExportJob:
    return ExportJob.create(job_id, "export", "user", now=clock.time(), **fields)


def tasks_of(job_id: str, count: int, first: int = 0) -> list[ExportTask]:
    """`count` tasks, in order of their ids."""
    made = (
        ExportTask.of(job_id, f"https://files.example/{n}", f"{n:05}.bin")
        for n in range(first, first + count)
    )
    return sorted(made, key=lambda task: task.task_id)


def succeeded(task: ExportTask, bytes_processed: int = 7) -> TaskResult:
    return TaskResult(task.job_id, task.task_id, True, bytes_processed)


def failed(task: ExportTask) -> TaskResult:
    return TaskResult(task.job_id, task.task_id, False, 0, BROKEN)


def job_of(repository: JobStateRepository, job_id: str = "job") -> ExportJob:
    """The job there must be."""
    job = repository.find_by_id(job_id)
    assert job is not None
    return job


def started(
    repository: JobStateRepository, clock: ManualClock, count: int = 3, **fields: Any
) -> list[ExportTask]:
    """A job in DOWNLOADING with so many tasks, not sealed yet."""
    job = new_job(clock, **fields)
    repository.save(job)
    tasks = tasks_of(job.job_id, count)
    repository.add_tasks(job.job_id, tasks)
    repository.update_job_status(job.job_id, JobStatus.DOWNLOADING)
    return tasks


def sealed(
    repository: JobStateRepository, clock: ManualClock, count: int = 3, **fields: Any
) -> list[ExportTask]:
    tasks = started(repository, clock, count, **fields)
    repository.set_total_tasks(tasks[0].job_id if tasks else fields.get("job_id", "job"), count)
    return tasks


def all_done(
    repository: JobStateRepository, clock: ManualClock, count: int = 2, **fields: Any
) -> list[ExportTask]:
    """A sealed job of which every task succeeded and was counted."""
    tasks = sealed(repository, clock, count, **fields)
    repository.record_results(fields.get("job_id", "job"), [succeeded(task) for task in tasks])
    return tasks


def decided(repository: JobStateRepository, clock: ManualClock, **fields: Any) -> ExportJob:
    """A job with a token whose tasks are done and whose callback is pending."""
    all_done(repository, clock, **{"task_token": TOKEN} | fields)
    job = repository.claim_outcome(fields.get("job_id", "job"))
    assert job is not None
    return job


def counters(repository: JobStateRepository, job_id: str = "job") -> tuple[int, int]:
    state = job_of(repository, job_id).state
    return state.completed_tasks, state.failed_tasks


def rows(repository: JobStateRepository, job_id: str = "job") -> list[ExportTask]:
    """Every task row, page by page."""
    found: list[ExportTask] = []
    while True:
        after = found[-1].task_id if found else None
        page = repository.tasks(job_id, after=after, limit=100)
        found += page
        if len(page) < 100:
            return found


def assert_books_agree(repository: JobStateRepository, job_id: str = "job") -> None:
    """I-JB-1 and I-JB-2: counters are the finished rows, and the rest is what remains."""
    job = job_of(repository, job_id)
    found = rows(repository, job_id)
    assert counters(repository, job_id) == (
        _count(found, TaskStatus.COMPLETED),
        _count(found, TaskStatus.FAILED),
    )
    assert job.remaining_tasks == job.state.total_tasks - job.state.processed_tasks


def _count(tasks: Sequence[ExportTask], status: TaskStatus) -> int:
    return sum(task.status is status for task in tasks)
