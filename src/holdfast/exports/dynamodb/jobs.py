"""DynamoDBJobs: the job store on Amazon DynamoDB."""

from typing import Any

from holdfast.errors import InvalidInput
from holdfast.exports import transitions
from holdfast.exports.dynamodb import items
from holdfast.exports.dynamodb.tables import (
    JOBS,
    STATUS_INDEX,
    TASKS,
    JobTables,
    format_tables_command,
)
from holdfast.exports.errors import InvalidJob
from holdfast.exports.model import ExportJob, ExportTask, TaskResult
from holdfast.exports.row_store import RowJobStore
from holdfast.exports.rows import row_from_job, row_from_task
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.dynamodb.client import DynamoDBClient
from holdfast.store.dynamodb.rows import DynamoDBDatabase, Item, ItemTable, measure_item

MAX_TASK_BYTES = 398 * 1024  # of 400 KB for one item, because the id of its job comes on top
# A job's row grows until it is settled, by the outcome, two reasons and another token. A row
# that just fits when it is saved could never end.
MAX_JOB_BYTES = 320 * 1024
_COUNTERS = ("completedTasks", "failedTasks", "remainingTasks")


def define_rows(tables: JobTables) -> dict[str, ItemTable]:
    """Return how the rows of jobs and tasks are stored in these tables."""
    jobs = ItemTable(
        tables.jobs,
        ("jobId",),
        items.item_from_job,
        items.job_from_item,
        version="writeId",
        guards=("status", "sealed", "totalTasks", "callbackState", *_COUNTERS),
        counters=_COUNTERS,
        index=(STATUS_INDEX, "status"),
    )
    tasks = ItemTable(
        tables.tasks, ("jobId", "taskId"), items.item_from_row, items.task_from_item
    )
    return {"jobs": jobs, "tasks": tasks}


class DynamoDBJobs(RowJobStore):
    """Jobs in two DynamoDB tables, which `create_tables` creates.

    `keep_seconds` is how long the row of a finished job is kept, and a task's row from its
    result on; None keeps rows forever. It must be longer than any job takes, because a job that
    is listed again would otherwise miss tasks that it has counted and count them twice.
    """

    def __init__(
        self,
        *,
        jobs_table: str = JOBS,
        tasks_table: str = TASKS,
        client: Any = None,
        clock: Clock = SYSTEM_CLOCK,
        keep_seconds: float | None = None,
    ) -> None:
        tables = JobTables(jobs_table, tasks_table)
        dynamodb = DynamoDBClient(client, clock, tables_command=format_tables_command(tables))
        self._tables = define_rows(tables)
        super().__init__(DynamoDBDatabase(dynamodb, self._tables), clock, keep_seconds)

    def save(self, job: ExportJob) -> None:
        """Store a new job. Raises JobExists, and InvalidJob for what DynamoDB cannot store."""
        item = items.item_from_job(row_from_job(job))
        self._check("jobs", item, MAX_JOB_BYTES, f"job {transitions.shorten_name(job.job_id)}")
        super().save(job)

    def _measure_task(self, task: ExportTask) -> int:
        item = items.item_from_row(row_from_task("job", task))
        return self._check("tasks", item, MAX_TASK_BYTES, "a task")

    def _check(self, table: str, item: Item, max_bytes: int, subject: str) -> int:
        """Return the bytes of an item. Raises InvalidJob if DynamoDB cannot store it."""
        if self._tables[table].find_key(item) is None:
            raise InvalidJob(
                f"{subject}: the id must have 1 to 2048 bytes, of a task 1 to 1024"
            )
        try:
            size = measure_item(item)
        except InvalidInput as error:
            raise InvalidJob(f"{subject}: {error}") from None
        if size > max_bytes:
            raise InvalidJob(
                f"{subject} is too large: it has {size} bytes, the limit is {max_bytes}"
            )
        return size

    def _row_from_result(self, result: TaskResult) -> dict[str, Any]:
        ttl = transitions.compute_ttl(self._clock.time(), self._keep_seconds)
        return {**super()._row_from_result(result), "ttl": ttl}
