"""Task rows and the job's counters, together: the transactions.

    up to 99 tasks   each if it is not counted yet      (or: not stored yet)
    + the job        ADD of what these 99 make, if it is still open

Either all of that happens or nothing. When tasks stand in the way, because somebody has
counted them before, they are left out and the others are sent again. When the job stands in
the way, it is closed, and whoever asked is told.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from holdfast.adapters.aws.dynamodb import conditions, items
from holdfast.adapters.aws.dynamodb.client import ConditionFailed, DynamoDBClient, WriteDone
from holdfast.adapters.aws.dynamodb.tables import JobTables
from holdfast.adapters.aws.dynamodb.updates import WriteTime
from holdfast.adapters.aws.dynamodb.values import Attributes, measure_size
from holdfast.jobs.model import ExportTask, TaskResult

MAX_TASKS_PER_TRANSACTION = 99  # a transaction takes 100 rows, and the job is one of them
_MAX_BYTES_PER_TRANSACTION = 3 * 1024 * 1024  # it takes 4 MB; expressions need some of it

Write = dict[str, Any]  # one entry of TransactItems


@dataclass(frozen=True, slots=True)
class TasksRefused:
    """The job does not take it. `row` as it is, empty when there is no job."""

    row: items.Row


class TaskTransactions:
    """Writes of many task rows at once."""

    def __init__(self, client: DynamoDBClient, tables: JobTables) -> None:
        self._client = client
        self._tables = tables

    # -- results

    def record(
        self, job_id: str, results: Sequence[TaskResult], at: WriteTime
    ) -> int | TasksRefused:
        """How many were counted now; 0 also when the job was not looked at.

        An answer that is lost costs nothing but the number: rows that are counted already
        are not counted by the next try, nor in what it returns.
        """
        first = _keep_first_results(job_id, results)
        counted = 0
        for some in _split_results(list(first.values())):
            answer = self._send(
                {one.task_id: self._build_result_update(job_id, one, at) for one in some},
                lambda ids: self._build_count_update(
                    job_id, [first[task_id] for task_id in ids], at
                ),
            )
            if isinstance(answer, TasksRefused):
                return answer
            counted += answer
        return counted

    def record_unnamed(self, job_id: str, success: bool, at: WriteTime) -> int | TasksRefused:
        """Count a task that nobody listed, with a row of its own."""
        result = TaskResult(job_id, f"unnamed-{uuid4().hex}", success)
        put = {
            result.task_id: self._build_task_put(items.row_from_unlisted_result(result, at.ttl))
        }
        return self._send(put, lambda _: self._build_count_update(job_id, [result], at))

    def _build_result_update(self, job_id: str, result: TaskResult, at: WriteTime) -> Write:
        row = items.changes_from_result(result, at.ttl)
        update = "SET " + ", ".join(f"#{name} = :new_{name}" for name in row)
        values = {f":new_{name}": value for name, value in row.items()}
        return {
            "Update": {
                "TableName": self._tables.tasks,
                "Key": items.build_task_key(job_id, result.task_id),
                "UpdateExpression": update,
                "ConditionExpression": conditions.UNCOUNTED,
                **conditions.bind_values(values, update, conditions.UNCOUNTED),
            }
        }

    def _build_count_update(
        self, job_id: str, results: Sequence[TaskResult], at: WriteTime
    ) -> Write:
        done = sum(result.success for result in results)
        values = {
            ":done": done,
            ":failed": len(results) - done,
            ":fewer": -len(results),
            ":now": at.now,
        }
        update = (
            "ADD #completedTasks :done, #failedTasks :failed, #remainingTasks :fewer "
            "SET #updatedAt = :now, #lastProgressAt = :now"
        )
        return self._build_job_update(job_id, update, conditions.CAN_COUNT_RESULTS, values)

    # -- listing

    def add(
        self, job_id: str, tasks: Iterable[ExportTask], at: WriteTime
    ) -> int | TasksRefused:
        """Store those that are not there; how many, 0 also when the job was not looked at."""
        added = 0
        for some in _split_by_size(items.row_from_task(job_id, task) for task in tasks):
            puts = {row["taskId"]["S"]: self._build_task_put(row) for row in some}
            answer = self._send(puts, lambda _: self._build_touch(job_id, at))
            if isinstance(answer, TasksRefused):
                return answer
            added += answer
        return added

    def _build_task_put(self, row: Attributes) -> Write:
        return {
            "Put": {
                "TableName": self._tables.tasks,
                "Item": row,
                "ConditionExpression": conditions.NEW_TASK,
                **conditions.bind_values({}, conditions.NEW_TASK),
            }
        }

    def _build_touch(self, job_id: str, at: WriteTime) -> Write:
        """The seal says that no task comes after it: so it must see this row change."""
        return self._build_job_update(
            job_id, "SET #updatedAt = :now", conditions.UNSEALED, {":now": at.now}
        )

    # -- sending

    def _send(
        self, writes: Mapping[str, Write], job: Callable[[list[str]], Write]
    ) -> int | TasksRefused:
        """Write these rows and the job's; again without those that stand in the way.

        Each round is shorter than the one before, and almost always there is one: DynamoDB
        says of all rows at once what is wrong with them.
        """
        left = dict(writes)
        while left:
            answer = self._client.transact([*left.values(), job(list(left))])
            if isinstance(answer, WriteDone):
                return len(left)
            *tasks, of_job = answer.reasons
            if isinstance(of_job, ConditionFailed):
                return TasksRefused(of_job.row)
            refused = zip(list(left), tasks, strict=True)
            left = {name: left[name] for name, reason in refused if reason is None}
        return 0

    def _build_job_update(
        self, job_id: str, update: str, condition: str, values: Mapping[str, Any]
    ) -> Write:
        return {
            "Update": {
                "TableName": self._tables.jobs,
                "Key": items.build_job_key(job_id),
                "UpdateExpression": update,
                "ConditionExpression": condition,
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                **conditions.bind_values(values, update, condition),
            }
        }


def _keep_first_results(job_id: str, results: Sequence[TaskResult]) -> dict[str, TaskResult]:
    """A transaction takes no row twice; what cannot be a task of this job is unknown."""
    first: dict[str, TaskResult] = {}
    for result in results:
        if result.job_id == job_id and items.is_valid_task_id(result.task_id):
            first.setdefault(result.task_id, result)
    return first


def _split_results(results: list[TaskResult]) -> Iterator[list[TaskResult]]:
    for start in range(0, len(results), MAX_TASKS_PER_TRANSACTION):
        yield results[start : start + MAX_TASKS_PER_TRANSACTION]


def _split_by_size(rows: Iterable[Attributes]) -> Iterator[list[Attributes]]:
    """As many as one transaction takes, by number and by size, none of them twice."""
    some: dict[str, Attributes] = {}
    size = 0
    for row in rows:
        if len(some) == MAX_TASKS_PER_TRANSACTION or (
            some and size + measure_size(row) > _MAX_BYTES_PER_TRANSACTION
        ):
            yield list(some.values())
            some, size = {}, 0
        if (task_id := row["taskId"]["S"]) not in some:
            some[task_id] = row
            size += measure_size(row)
    if some:
        yield list(some.values())
