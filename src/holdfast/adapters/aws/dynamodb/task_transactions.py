"""Transactions that write task rows together with the job's counters.

    up to 99 tasks   each if it is not counted yet (or: not stored yet)
    + the job        ADD of what these tasks contribute, if it is still open

Either all of these writes happen or none. Tasks that another caller has counted before are left
out and the others are sent again. If the job refuses the write, it is closed, and the call
returns TasksRefused.
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

MAX_TASKS_PER_TRANSACTION = 99  # a transaction takes 100 rows, one of which is the job
_MAX_BYTES_PER_TRANSACTION = 3 * 1024 * 1024  # of 4 MB, because expressions need some of it

Write = dict[str, Any]  # one entry of TransactItems


@dataclass(frozen=True, slots=True)
class TasksRefused:
    """The job does not accept the write. `row` is the job's row, empty if there is no job."""

    row: items.Row


class TaskTransactions:
    """Writes many task rows at once."""

    def __init__(self, client: DynamoDBClient, tables: JobTables) -> None:
        self._client = client
        self._tables = tables

    # -- results

    def record(
        self, job_id: str, results: Sequence[TaskResult], at: WriteTime
    ) -> int | TasksRefused:
        """Return the number of results counted now, which may be 0 without a check of the job.

        If a response is lost, only the returned number is too low. The next try does not count
        the tasks again, neither in the row nor in its return value.
        """
        first_results = _keep_first_results(job_id, results)
        counted = 0
        for group in _split_results(list(first_results.values())):
            outcome = self._send(
                {
                    result.task_id: self._build_result_update(job_id, result, at)
                    for result in group
                },
                lambda ids: self._build_count_update(
                    job_id, [first_results[task_id] for task_id in ids], at
                ),
            )
            if isinstance(outcome, TasksRefused):
                return outcome
            counted += outcome
        return counted

    def record_unnamed(self, job_id: str, success: bool, at: WriteTime) -> int | TasksRefused:
        """Count a task that was never listed, with a row of its own."""
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
        completed = sum(result.success for result in results)
        values = {
            ":done": completed,
            ":failed": len(results) - completed,
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
        """Store the missing tasks and return their number, which may be 0 without a check of
        the job.
        """
        added = 0
        for rows in _split_by_size(items.row_from_task(job_id, task) for task in tasks):
            puts = {row["taskId"]["S"]: self._build_task_put(row) for row in rows}
            outcome = self._send(puts, lambda _: self._build_touch(job_id, at))
            if isinstance(outcome, TasksRefused):
                return outcome
            added += outcome
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
        """Build an update of the job's row, which makes a concurrent seal conflict with this
        listing.

        No task may be added after the seal.
        """
        return self._build_job_update(
            job_id, "SET #updatedAt = :now", conditions.UNSEALED, {":now": at.now}
        )

    # -- sending

    def _send(
        self, writes: Mapping[str, Write], job: Callable[[list[str]], Write]
    ) -> int | TasksRefused:
        """Write these rows and the job's, and repeat it without rows that are refused.

        Each round has fewer rows than the one before. There is almost always one round, because
        DynamoDB reports all refused rows at once.
        """
        remaining = dict(writes)
        while remaining:
            result = self._client.transact([*remaining.values(), job(list(remaining))])
            if isinstance(result, WriteDone):
                return len(remaining)
            *tasks, job_reason = result.reasons
            if isinstance(job_reason, ConditionFailed):
                return TasksRefused(job_reason.row)
            reasons_by_name = zip(list(remaining), tasks, strict=True)
            remaining = {
                name: remaining[name] for name, reason in reasons_by_name if reason is None
            }
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
    """Return the first result of each task, because a transaction takes no row twice.

    Results that cannot belong to this job are left out.
    """
    first_results: dict[str, TaskResult] = {}
    for result in results:
        if result.job_id == job_id and items.is_valid_task_id(result.task_id):
            first_results.setdefault(result.task_id, result)
    return first_results


def _split_results(results: list[TaskResult]) -> Iterator[list[TaskResult]]:
    for start in range(0, len(results), MAX_TASKS_PER_TRANSACTION):
        yield results[start : start + MAX_TASKS_PER_TRANSACTION]


def _split_by_size(rows: Iterable[Attributes]) -> Iterator[list[Attributes]]:
    """Split the rows into groups that fit into one transaction, each row only once."""
    group: dict[str, Attributes] = {}
    size = 0
    for row in rows:
        if len(group) == MAX_TASKS_PER_TRANSACTION or (
            group and size + measure_size(row) > _MAX_BYTES_PER_TRANSACTION
        ):
            yield list(group.values())
            group, size = {}, 0
        if (task_id := row["taskId"]["S"]) not in group:
            group[task_id] = row
            size += measure_size(row)
    if group:
        yield list(group.values())
