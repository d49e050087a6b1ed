"""Helpers for the tests of DynamoDBJobs: jobs, and a list of all writes."""

from collections.abc import Callable
from typing import Any

from holdfast.exports.dynamodb import DynamoDBJobs
from holdfast.exports.dynamodb.items import item_from_job
from holdfast.exports.errors import JobExists
from holdfast.exports.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskToken,
)
from holdfast.exports.rows import row_from_job
from holdfast.store.dynamodb.values import encode
from holdfast.testing import ManualClock

CANARY = "canary-of-a-task-token"
STALLED = JobError("JobStalled", "no task was finished for too long")
CLOSED = JobError("TaskTimedOut", "Step Functions does not wait for this job any more")

Write = Callable[[DynamoDBJobs], object]


def make_tasks(job_id: str, count: int) -> list[ExportTask]:
    """Return this many tasks of a job, in the order of their ids."""
    tasks = (
        ExportTask.create(job_id, f"https://files.example/{n}", f"{n}") for n in range(count)
    )
    return sorted(tasks, key=lambda task: task.task_id)


def make_result(task: ExportTask, success: bool = True) -> TaskResult:
    """Return a result of the task."""
    return TaskResult(task.job_id, task.task_id, success, 7)


def make_job(clock: ManualClock, job_id: str = "job", **fields: Any) -> ExportJob:
    """Return a new job with a token."""
    fields = {"task_token": CANARY} | fields
    return ExportJob.create(job_id, "export", "user", now=clock.time(), **fields)


def start_job(jobs: DynamoDBJobs, clock: ManualClock, count: int) -> list[ExportTask]:
    """Store a job that is in progress, and return its tasks."""
    jobs.save(make_job(clock))
    tasks = make_tasks("job", count)
    jobs.add_tasks("job", tasks)
    jobs.update_job_status("job", JobStatus.DOWNLOADING)
    return tasks


def decide_job(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    """Store a job whose outcome is decided."""
    tasks = start_job(jobs, clock, 1)
    jobs.set_total_tasks("job", 1)
    jobs.record_results("job", [make_result(tasks[0])])
    assert jobs.claim_outcome("job")


def get_job(jobs: DynamoDBJobs, job_id: str = "job") -> ExportJob:
    """Return the stored job."""
    job = jobs.find_by_id(job_id)
    assert job is not None
    return job


def put_job(client: Any, job: ExportJob) -> None:
    """Store a job as a program does that writes no version."""
    item = {n: v for n, v in item_from_job(row_from_job(job)).items() if v is not None}
    client.put_item(TableName="ExportJobs", Item=encode(item))


def read_row(client: Any, job_id: str = "job") -> dict[str, Any]:
    """Return the row of a job."""
    row: dict[str, Any] = client.get_item(TableName="ExportJobs", Key={"jobId": {"S": job_id}})
    return dict(row["Item"])


def count_rows(client: Any, table: str) -> int:
    """Return the number of rows in a table."""
    count: int = client.scan(TableName=table)["Count"]
    return count


# -- all writes, and the state that each needs


def _prepare_nothing(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    pass


def _prepare_saved(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    jobs.save(make_job(clock))


def _prepare_working(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    start_job(jobs, clock, 3)


def _prepare_free(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    jobs.save(make_job(clock, task_token=None))


def _prepare_counted(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    tasks = start_job(jobs, clock, 2)
    jobs.set_total_tasks("job", 2)
    jobs.record_results("job", [make_result(tasks[0]), make_result(tasks[1], False)])


def _prepare_begun(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    decide_job(jobs, clock)
    assert jobs.begin_callback("job", again_after_seconds=5.0)


def _prepare_closed(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    start_job(jobs, clock, 3)
    assert jobs.note_token_closed("job", TaskToken(CANARY), CLOSED)


def _prepare_failed(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    _prepare_closed(jobs, clock)
    assert jobs.give_up_closed("job", grace_seconds=0.0)
    assert jobs.settle("job", JobStatus.FAILED, CLOSED)


PREPARATIONS = {
    "nothing": _prepare_nothing,
    "saved": _prepare_saved,
    "working": _prepare_working,
    "free": _prepare_free,
    "counted": _prepare_counted,
    "decided": decide_job,
    "begun": _prepare_begun,
    "closed": _prepare_closed,
    "failed": _prepare_failed,
}


class Case:
    """A write, the state it needs, and the error that repeating it may raise."""

    def __init__(
        self, prepare: str, call: Write, repeat_error: type[Exception] | None = None
    ) -> None:
        self.prepare, self.call, self.repeat_error = prepare, call, repeat_error


WRITES = {
    "save": Case(
        "nothing", lambda jobs: jobs.save(make_job(ManualClock(), metadata={"a": 1})), JobExists
    ),
    "update_job_status": Case(
        "saved", lambda jobs: jobs.update_job_status("job", JobStatus.DOWNLOADING)
    ),
    "update_job_status to its end": Case(
        "free", lambda jobs: jobs.update_job_status("job", JobStatus.FAILED, STALLED)
    ),
    "update_job_state": Case(
        "saved", lambda jobs: jobs.update_job_state("job", JobState(JobStatus.DOWNLOADING))
    ),
    "increment_completed_tasks": Case(
        "working",
        lambda jobs: jobs.increment_completed_tasks("job", make_tasks("job", 3)[0].task_id),
    ),
    "increment_failed_tasks": Case(
        "working",
        lambda jobs: jobs.increment_failed_tasks("job", make_tasks("job", 3)[0].task_id),
    ),
    "set_total_tasks": Case("working", lambda jobs: jobs.set_total_tasks("job", 3)),
    "add_tasks": Case("saved", lambda jobs: jobs.add_tasks("job", make_tasks("job", 3))),
    "record_results": Case(
        "working",
        lambda jobs: jobs.record_results(
            "job", [make_result(task) for task in make_tasks("job", 3)]
        ),
    ),
    "note_progress": Case("working", lambda jobs: jobs.note_progress("job")),
    "claim_outcome": Case("counted", lambda jobs: jobs.claim_outcome("job")),
    "give_up": Case("working", lambda jobs: jobs.give_up("job", STALLED)),
    "begin_callback": Case(
        "decided", lambda jobs: jobs.begin_callback("job", again_after_seconds=5.0)
    ),
    "end_callback": Case("begun", lambda jobs: jobs.end_callback("job", in_doubt=False)),
    "settle": Case("begun", lambda jobs: jobs.settle("job", JobStatus.COMPLETED, None)),
    "note_token_closed": Case(
        "working", lambda jobs: jobs.note_token_closed("job", TaskToken(CANARY), CLOSED)
    ),
    "give_up_closed": Case(
        "closed", lambda jobs: jobs.give_up_closed("job", grace_seconds=0.0)
    ),
    "attach_token to a failed job": Case(
        "failed", lambda jobs: jobs.attach_token("job", TaskToken("other"))
    ),
    "attach_token": Case("working", lambda jobs: jobs.attach_token("job", TaskToken("other"))),
}
