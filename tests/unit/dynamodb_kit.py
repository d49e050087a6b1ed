"""What the tests of DynamoDBJobs share: tables on moto, and every write there is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto import mock_aws

from holdfast.adapters.aws.dynamodb import DynamoDBJobs
from holdfast.adapters.aws.dynamodb.tables import JobTables, definitions
from holdfast.jobs.errors import JobExists
from holdfast.jobs.model import (
    ExportJob,
    ExportTask,
    JobError,
    JobState,
    JobStatus,
    TaskResult,
    TaskToken,
)
from holdfast.testing import ManualClock

CANARY = "canary-of-a-task-token"
STALLED = JobError("JobStalled", "no task was finished for too long")

Write = Callable[[DynamoDBJobs], object]


@contextmanager
def service() -> Iterator[Any]:
    """moto, in this process."""
    with mock_aws():
        yield boto3.client(
            "dynamodb",
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )


def emptied(client: Any) -> Any:
    """The service, with two tables and nothing in them."""
    for table in client.list_tables()["TableNames"]:
        client.delete_table(TableName=table)
    for definition in definitions(JobTables()):
        client.create_table(**definition)
    return client


def tasks_of(job_id: str, count: int) -> list[ExportTask]:
    made = (ExportTask.of(job_id, f"https://files.example/{n}", f"{n}") for n in range(count))
    return sorted(made, key=lambda task: task.task_id)


def result(task: ExportTask, success: bool = True) -> TaskResult:
    return TaskResult(task.job_id, task.task_id, success, 7)


def new_job(clock: ManualClock, job_id: str = "job", **fields: Any) -> ExportJob:
    fields = {"task_token": CANARY} | fields
    return ExportJob.create(job_id, "export", "user", now=clock.time(), **fields)


def started(jobs: DynamoDBJobs, clock: ManualClock, count: int) -> list[ExportTask]:
    jobs.save(new_job(clock))
    tasks = tasks_of("job", count)
    jobs.add_tasks("job", tasks)
    jobs.update_job_status("job", JobStatus.DOWNLOADING)
    return tasks


def decided(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    tasks = started(jobs, clock, 1)
    jobs.set_total_tasks("job", 1)
    jobs.record_results("job", [result(tasks[0])])
    assert jobs.claim_outcome("job")


def found(jobs: DynamoDBJobs, job_id: str = "job") -> ExportJob:
    job = jobs.find_by_id(job_id)
    assert job is not None
    return job


def row_of(client: Any, job_id: str = "job") -> dict[str, Any]:
    row: dict[str, Any] = client.get_item(TableName="ExportJobs", Key={"jobId": {"S": job_id}})
    return dict(row["Item"])


def rows_in(client: Any, table: str) -> int:
    count: int = client.scan(TableName=table)["Count"]
    return count


def forget_all(client: Any) -> None:
    for table, names in (("ExportJobs", ["jobId"]), ("ExportTasks", ["jobId", "taskId"])):
        for row in client.scan(TableName=table)["Items"]:
            client.delete_item(TableName=table, Key={name: row[name] for name in names})


# -- every write there is, and what it is made on


def _nothing(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    pass


def _saved(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    jobs.save(new_job(clock))


def _working(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    started(jobs, clock, 3)


def _free(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    jobs.save(new_job(clock, task_token=None))


def _counted(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    tasks = started(jobs, clock, 2)
    jobs.set_total_tasks("job", 2)
    jobs.record_results("job", [result(tasks[0]), result(tasks[1], False)])


def _begun(jobs: DynamoDBJobs, clock: ManualClock) -> None:
    decided(jobs, clock)
    assert jobs.begin_callback("job", again_after_seconds=5.0)


PREPARED = {
    "nothing": _nothing,
    "saved": _saved,
    "working": _working,
    "free": _free,
    "counted": _counted,
    "decided": decided,
    "begun": _begun,
}


class Case:
    """A write, what must be there before, and what asking again may raise."""

    def __init__(self, prepare: str, call: Write, again: type[Exception] | None = None) -> None:
        self.prepare, self.call, self.again = prepare, call, again


WRITES = {
    "save": Case(
        "nothing", lambda jobs: jobs.save(new_job(ManualClock(), metadata={"a": 1})), JobExists
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
        lambda jobs: jobs.increment_completed_tasks("job", tasks_of("job", 3)[0].task_id),
    ),
    "increment_failed_tasks": Case(
        "working",
        lambda jobs: jobs.increment_failed_tasks("job", tasks_of("job", 3)[0].task_id),
    ),
    "set_total_tasks": Case("working", lambda jobs: jobs.set_total_tasks("job", 3)),
    "add_tasks": Case("saved", lambda jobs: jobs.add_tasks("job", tasks_of("job", 3))),
    "record_results": Case(
        "working",
        lambda jobs: jobs.record_results("job", [result(task) for task in tasks_of("job", 3)]),
    ),
    "note_progress": Case("working", lambda jobs: jobs.note_progress("job")),
    "claim_outcome": Case("counted", lambda jobs: jobs.claim_outcome("job")),
    "give_up": Case("working", lambda jobs: jobs.give_up("job", STALLED)),
    "begin_callback": Case(
        "decided", lambda jobs: jobs.begin_callback("job", again_after_seconds=5.0)
    ),
    "end_callback": Case("begun", lambda jobs: jobs.end_callback("job", in_doubt=False)),
    "settle": Case("begun", lambda jobs: jobs.settle("job", JobStatus.COMPLETED, None)),
    "attach_token": Case("working", lambda jobs: jobs.attach_token("job", TaskToken("other"))),
}
