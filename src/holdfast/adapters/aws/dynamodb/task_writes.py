"""Writes of task rows, for transactions that also write the job's row.

up to 99 tasks   each if it is not counted yet (or: not stored yet)
+ the job        ADD of what these tasks contribute, if it is still open
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb import items
from holdfast.adapters.aws.dynamodb.updates import CALLS
from holdfast.adapters.aws.dynamodb.values import Attributes, measure_size
from holdfast.jobs.model import TaskResult

# A task that is listed for the first time. Listing it again leaves its row as it is.
NEW_TASK = "attribute_not_exists(#taskId)"
# The first result of a listed task. Any other result was counted already.
UNCOUNTED = "#status = :task_pending"

MAX_TASKS_PER_TRANSACTION = 99  # a transaction takes 100 rows, one of which is the job
_MAX_BYTES_PER_TRANSACTION = 3 * 1024 * 1024  # of 4 MB, because expressions need some of it

Write = dict[str, Any]  # one entry of TransactItems


def build_result_update(table: str, result: TaskResult, ttl: int | None) -> Write:
    """Return the write that finishes a task."""
    row = items.changes_from_result(result, ttl)
    update = "SET " + ", ".join(f"#{name} = :new_{name}" for name in row)
    values = {f":new_{name}": value for name, value in row.items()}
    key = items.build_task_key(result.job_id, result.task_id)
    return {"Update": CALLS.update(table, key, update, UNCOUNTED, values)}


def build_task_put(table: str, row: Attributes) -> Write:
    """Return the write that stores a new task."""
    return {"Put": CALLS.put(table, row, NEW_TASK)}


def split_results(results: Mapping[str, TaskResult]) -> Iterator[dict[str, TaskResult]]:
    """Split the results into groups that fit into one transaction."""
    entries = list(results.items())
    for start in range(0, len(entries), MAX_TASKS_PER_TRANSACTION):
        yield dict(entries[start : start + MAX_TASKS_PER_TRANSACTION])


def split_rows(rows: Iterable[Attributes]) -> Iterator[dict[str, Attributes]]:
    """Split the rows into groups that fit into one transaction, each row only once."""
    group: dict[str, Attributes] = {}
    size = 0
    for row in rows:
        row_size = measure_size(row)
        is_full = len(group) == MAX_TASKS_PER_TRANSACTION
        if is_full or (group and size + row_size > _MAX_BYTES_PER_TRANSACTION):
            yield group
            group, size = {}, 0
        if (task_id := row["taskId"]["S"]) not in group:
            group[task_id] = row
            size += row_size
    if group:
        yield group
