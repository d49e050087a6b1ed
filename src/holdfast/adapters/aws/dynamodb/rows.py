"""Read the latest rows of jobs, and change them under a condition.

A response can be lost after the write was done. botocore then repeats the call, and the first
call makes DynamoDB refuse the second. Each write therefore leaves its own id in the row and
recognises it there. Otherwise the caller that claimed an outcome would conclude that another
caller did, and the outcome would not be delivered until the next reconciliation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal
from uuid import uuid4

from holdfast.adapters.aws.dynamodb import conditions, items
from holdfast.adapters.aws.dynamodb.client import ConditionFailed, DynamoDBClient, WriteDone
from holdfast.adapters.aws.dynamodb.tables import STATUS_INDEX, JobTables
from holdfast.adapters.aws.dynamodb.updates import JobUpdate
from holdfast.adapters.aws.dynamodb.values import Attributes, decode, encode
from holdfast.jobs.model import ExportJob, ExportTask, JobStatus, TaskStatus

_MAX_KEYS_PER_READ = 100  # DynamoDB's limit for one BatchGetItem


@dataclass(frozen=True, slots=True)
class RowUpdated:
    """The change was made.

    `row` is the row before or after it, as requested. If the first response was lost, it is
    always the row after the change.
    """

    row: items.Row
    response_lost: bool = False


class JobRows:
    """The rows of the job table and the task table."""

    def __init__(self, client: DynamoDBClient, tables: JobTables) -> None:
        self._client = client
        self._tables = tables

    # -- reading

    def read_job(self, job_id: str) -> items.Row:
        """Return the job's row. Raises JobNotFound."""
        response = self._client.call(
            "get_item",
            TableName=self._tables.jobs,
            Key=items.build_job_key(job_id),
            ConsistentRead=True,  # with an old counter a job might never be finished
        )
        if not (row := decode(response.get("Item"))):
            raise items.build_not_found_error(job_id)
        return row

    def read_by_status(self, status: JobStatus) -> list[items.Row]:
        """Return the rows of all jobs with this status.

        The index finds the jobs but lags behind, so the status is checked in the rows
        themselves. A job that has just ended is not returned.
        """
        key_condition = "#status = :status"
        pages = self._client.read_pages(
            "query",
            TableName=self._tables.jobs,
            IndexName=STATUS_INDEX,
            KeyConditionExpression=key_condition,
            **conditions.bind_values({":status": status.value}, key_condition),
        )
        # A job that moves while pages are read can be on two of them, and BatchGetItem refuses
        # a key that occurs twice.
        keys = [
            items.build_job_key(job_id)
            for job_id in dict.fromkeys(row["jobId"] for row in pages)
        ]
        return [row for row in self._read_full_rows(keys) if row.get("status") == status.value]

    def _read_full_rows(self, keys: list[Attributes]) -> Iterator[items.Row]:
        for start in range(0, len(keys), _MAX_KEYS_PER_READ):
            yield from self._client.read_rows(
                self._tables.jobs, keys[start : start + _MAX_KEYS_PER_READ]
            )

    def read_tasks(
        self, job_id: str, status: TaskStatus | None, after: str | None, limit: int
    ) -> Iterator[ExportTask]:
        """Return the tasks of a job in the order of their ids."""
        key_condition = "#jobId = :job AND #taskId > :after" if after else "#jobId = :job"
        filter_expression = "#status = :status" if status else ""
        # DynamoDB applies the limit before the filter, so with a limit it would read in small
        # steps.
        options = {"FilterExpression": filter_expression} if status else {"Limit": limit}
        values = {":job": job_id, ":after": after, ":status": status and status.value}
        pages = self._client.read_pages(
            "query",
            TableName=self._tables.tasks,
            ConsistentRead=True,
            KeyConditionExpression=key_condition,
            **options,
            **conditions.bind_values(values, key_condition, filter_expression),
        )
        return islice(map(items.task_from_row, pages), limit)

    # -- writing

    def put(self, job: ExportJob) -> bool:
        """Store a new job. Return False if there is a job with that id."""
        write_id = uuid4().hex
        result = self._client.write(
            "put_item",
            TableName=self._tables.jobs,
            Item={**items.row_from_job(job), **encode({"writeId": write_id})},
            ConditionExpression=conditions.NEW_JOB,
            **conditions.bind_values({}, conditions.NEW_JOB),
        )
        return not isinstance(result, ConditionFailed) or result.row.get("writeId") == write_id

    def change(
        self,
        job_id: str,
        change: JobUpdate,
        *,
        returns: Literal["ALL_NEW", "ALL_OLD"] = "ALL_NEW",
    ) -> RowUpdated | ConditionFailed:
        """Apply the change. Raises JobNotFound instead of creating a row."""
        write_id = uuid4().hex
        update = change.update.replace("SET ", "SET #writeId = :writeId, ", 1)
        result = self._client.write(
            "update_item",
            TableName=self._tables.jobs,
            Key=items.build_job_key(job_id),
            UpdateExpression=update,
            ConditionExpression=change.condition,
            ReturnValues=returns,
            **conditions.bind_values(
                {**change.values, ":writeId": write_id}, update, change.condition
            ),
        )
        if isinstance(result, WriteDone):
            return RowUpdated(result.row)
        if not result.row:
            raise items.build_not_found_error(job_id)
        is_own = result.row.get("writeId") == write_id
        return RowUpdated(result.row, response_lost=True) if is_own else result
