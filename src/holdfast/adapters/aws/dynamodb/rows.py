"""The rows of jobs: read as last written, changed under a condition.

An answer can be lost after the write was done, and botocore tries again by itself: the
second try is refused by what the first one did. So each write leaves an id of its own in
the row, by which it recognises itself there. Otherwise whoever claimed an outcome would be
told that somebody else did, and nobody would deliver it until the next look around.
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

_MAX_KEYS_PER_READ = 100  # keys of one BatchGetItem


@dataclass(frozen=True, slots=True)
class RowUpdated:
    """It was done. `row` is as it was asked for, before or after the change; when the first
    answer was lost it is as after, in any case."""

    row: items.Row
    response_lost: bool = False


class JobRows:
    def __init__(self, client: DynamoDBClient, tables: JobTables) -> None:
        self._client = client
        self._tables = tables

    # -- reading

    def read_job(self, job_id: str) -> items.Row:
        """Raises JobNotFound."""
        answer = self._client.call(
            "get_item",
            TableName=self._tables.jobs,
            Key=items.build_job_key(job_id),
            ConsistentRead=True,  # an old counter is a job that nobody finishes (JB-10)
        )
        if not (row := decode(answer.get("Item"))):
            raise items.build_not_found_error(job_id)
        return row

    def read_by_status(self, status: JobStatus) -> list[items.Row]:
        """Found by the index, which lags behind; judged by the rows themselves, so that a
        job which just ended is not among them (JB-25)."""
        by_status = "#status = :status"
        pages = self._client.read_pages(
            "query",
            TableName=self._tables.jobs,
            IndexName=STATUS_INDEX,
            KeyConditionExpression=by_status,
            **conditions.bind_values({":status": status.value}, by_status),
        )
        # A job that moves while pages are read can be on two of them; BatchGetItem would
        # refuse to read a key twice.
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
        """In order of their ids, which are the range key of the table."""
        keys = "#jobId = :job AND #taskId > :after" if after else "#jobId = :job"
        only = "#status = :status" if status else ""
        # DynamoDB counts before it filters: with a limit it would read in small steps.
        how = {"FilterExpression": only} if status else {"Limit": limit}
        values = {":job": job_id, ":after": after, ":status": status and status.value}
        pages = self._client.read_pages(
            "query",
            TableName=self._tables.tasks,
            ConsistentRead=True,
            KeyConditionExpression=keys,
            **how,
            **conditions.bind_values(values, keys, only),
        )
        return islice(map(items.task_from_row, pages), limit)

    # -- writing

    def put(self, job: ExportJob) -> bool:
        """False when there is a job with that id."""
        mine = uuid4().hex
        answer = self._client.write(
            "put_item",
            TableName=self._tables.jobs,
            Item={**items.row_from_job(job), **encode({"writeId": mine})},
            ConditionExpression=conditions.NEW_JOB,
            **conditions.bind_values({}, conditions.NEW_JOB),
        )
        return not isinstance(answer, ConditionFailed) or answer.row.get("writeId") == mine

    def change(
        self,
        job_id: str,
        change: JobUpdate,
        *,
        returns: Literal["ALL_NEW", "ALL_OLD"] = "ALL_NEW",
    ) -> RowUpdated | ConditionFailed:
        """Raises JobNotFound, and makes up no row."""
        mine = uuid4().hex
        update = change.update.replace("SET ", "SET #writeId = :writeId, ", 1)
        answer = self._client.write(
            "update_item",
            TableName=self._tables.jobs,
            Key=items.build_job_key(job_id),
            UpdateExpression=update,
            ConditionExpression=change.condition,
            ReturnValues=returns,
            **conditions.bind_values(
                {**change.values, ":writeId": mine}, update, change.condition
            ),
        )
        if isinstance(answer, WriteDone):
            return RowUpdated(answer.row)
        if not answer.row:
            raise items.build_not_found_error(job_id)
        ours = answer.row.get("writeId") == mine
        return RowUpdated(answer.row, response_lost=True) if ours else answer
