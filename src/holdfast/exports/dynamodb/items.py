"""Rows of jobs and tasks as items with the seed's names.

Times are texts of fixed width in UTC, so they sort. `ttl` is in epoch seconds, as DynamoDB
requires. A value that a row does not have is a missing attribute.
"""

from datetime import UTC, datetime
from typing import Any

from holdfast.exports.model import CallbackState, JobStatus, TaskStatus
from holdfast.lease.clock import to_utc
from holdfast.store.dynamodb.rows import Item
from holdfast.store.dynamodb.values import find_whole_floats, restore_floats
from holdfast.store.rows import Row

MAX_MESSAGE_CHARS = 8_000  # 99 of them fit into one transaction of 4 MB

_EPOCH = datetime.fromtimestamp(0, UTC)

# The attribute of each column, if it is not the column's name in camel case. Tasks refer to
# their job by its id.
_ATTRIBUTES = {"job_no": "jobId", "callback_status": "outcome"}
# The columns of an error are one attribute with a code and a message.
_ERRORS = {"error": "error", "callback_error": "outcomeError"}
# A job whose outcome is not decided has none of these.
_CALLBACK = (
    *("callbackState", "outcome", "outcomeError"),
    *("callbackAttempts", "callbackInDoubt", "callbackAttemptedAt"),
)

# What is read for an attribute that is missing, also because other software wrote the item.
_NEW_JOB: Row = {
    **dict.fromkeys(("export_id", "user_id", "seen_tokens"), ""),
    **dict.fromkeys(("total_tasks", "completed_tasks", "failed_tasks", "remaining_tasks"), 0),
    **dict.fromkeys(("token_generation", "callback_attempts"), 0),
    **dict.fromkeys(("created_at", "updated_at", "last_progress_at"), 0.0),
    **dict.fromkeys(("completed_at", "token_closed_at", "callback_attempted_at"), None),
    **dict.fromkeys(("task_token", "ttl"), None),
    **dict.fromkeys(("sealed", "callback_in_doubt"), False),
    "callback_state": CallbackState.NONE.value,
    "callback_status": JobStatus.FAILED.value,
}
_NEW_TASK: Row = {
    **dict.fromkeys(("url", "key"), ""),
    **dict.fromkeys(("checksum", "size"), None),
    "bytes_processed": 0,
    "status": TaskStatus.PENDING.value,
}


def format_time(seconds: float) -> str:
    """Return a time as text, for example 2027-01-15T08:00:00.250000Z."""
    return to_utc(seconds).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float:
    """Return the epoch seconds of a time text."""
    return (datetime.fromisoformat(text) - _EPOCH).total_seconds()


def _name_attribute(column: str) -> str:
    first, *others = column.split("_")
    return _ATTRIBUTES.get(column) or first + "".join(map(str.capitalize, others))


_NAMES = {column: _name_attribute(column) for column in {**_NEW_JOB, **_NEW_TASK}}
_NAMES |= {"job_id": "jobId", "job_no": "jobId", "task_id": "taskId"}


# -- jobs


def item_from_job(row: Row) -> Item:
    """Return the attributes of a job's row, or of some of its columns."""
    item = item_from_row(row)
    if row.get("callback_state") == CallbackState.NONE.value:
        item |= dict.fromkeys(_CALLBACK)
    if "seen_tokens" in row:
        item["seenTokens"] = row["seen_tokens"].split()
    if "metadata" in row:
        item["metadata"] = row["metadata"] or None
        item["metadataFloats"] = find_whole_floats(row["metadata"]) or None
    # An active job's item must not expire, or the job would be started again.
    if "ttl" in row and not JobStatus(row["status"]).terminal:
        item["ttl"] = None
    return item


def job_from_item(item: Item) -> Row:
    """Return the row of a job."""
    row = _row_from_item(item, _NEW_JOB)
    floats = set(item.get("metadataFloats", ()))
    row["metadata"] = restore_floats(item.get("metadata", {}), floats)
    row["seen_tokens"] = " ".join(row["seen_tokens"])
    return row | {"job_id": item["jobId"], "job_no": item["jobId"], "status": item["status"]}


# -- tasks


def task_from_item(item: Item) -> Row:
    """Return the row of a task."""
    return _row_from_item(item, _NEW_TASK) | {"task_id": item["taskId"]}


# -- columns


def item_from_row(row: Row) -> Item:
    """Return the attributes of a task's row, or of some columns."""
    item = {
        _NAMES[column]: format_time(value)
        if column.endswith("_at") and value is not None
        else value
        for column, value in row.items()
        if column in _NAMES
    }
    for prefix, attribute in _ERRORS.items():
        if f"{prefix}_code" in row:
            item[attribute] = _item_from_error(row, prefix)
    return item


def _row_from_item(item: Item, defaults: Row) -> dict[str, Any]:
    row = {**defaults}
    for column, attribute in ((column, _NAMES[column]) for column in defaults):
        if attribute in item:
            value = item[attribute]
            row[column] = parse_time(value) if column.endswith("_at") else value
    for prefix, attribute in _ERRORS.items():
        error = item.get(attribute) or {}
        row[f"{prefix}_code"], row[f"{prefix}_message"] = (
            error.get("code"),
            error.get("message"),
        )
    return row


def _item_from_error(row: Row, prefix: str) -> Item | None:
    code, message = row[f"{prefix}_code"], row[f"{prefix}_message"]
    return None if code is None else {"code": _cut(code), "message": _cut(message)}


def _cut(text: str) -> str:
    """Cut a long text, because a job must not fail to end on account of a long reason."""
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[: MAX_MESSAGE_CHARS - 7]}… (cut)"
