"""The two tables, and how to make them.

    ExportJobs    jobId            index status-index: status, createdAt
    ExportTasks   jobId, taskId

The index holds keys alone, and its range is `createdAt`. With all attributes, or ordered
by `updatedAt`, each result that is counted would be written to the index as well, and all
active jobs share one partition there: when that is hot, DynamoDB slows down the writes to
the table itself (JB-22, D-19). So the index is written when a status changes, three times
in the life of a job, and whole jobs are read from the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.adapters.aws.dynamodb import errors
from holdfast.adapters.aws.errors import get_error_code
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.jobs.errors import StoreUnavailable

JOBS, TASKS = "ExportJobs", "ExportTasks"
STATUS_INDEX = "status-index"
_MAX_POLLS, _POLL_SECONDS = 120, 1.0  # until a new table can be used


@dataclass(frozen=True, slots=True)
class JobTables:
    jobs: str = JOBS
    tasks: str = TASKS


def format_tables_command(tables: JobTables) -> str:
    """Return the command that shows these tables, as it can be pasted."""
    prefix = tables.jobs.removesuffix(JOBS)
    named_alike = tables == JobTables(f"{prefix}{JOBS}", f"{prefix}{TASKS}")
    return f"holdfast export tables --jobs dynamodb:{prefix if named_alike else 'PREFIX'}"


def define_tables(tables: JobTables) -> list[dict[str, Any]]:
    """As CreateTable takes them. Paid by use: nothing to guess, and no five writes a
    second that hold up a whole fleet."""
    return [_define_jobs_table(tables.jobs), _define_tasks_table(tables.tasks)]


def _define_jobs_table(name: str) -> dict[str, Any]:
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": define_text_attributes("jobId", "status", "createdAt"),
        "KeySchema": define_key("jobId"),
        "GlobalSecondaryIndexes": [
            {
                "IndexName": STATUS_INDEX,
                "KeySchema": define_key("status", "createdAt"),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    }


def _define_tasks_table(name: str) -> dict[str, Any]:
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": define_text_attributes("jobId", "taskId"),
        "KeySchema": define_key("jobId", "taskId"),
    }


def define_text_attributes(*names: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": "S"} for name in names]


def define_key(*names: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": name, "KeyType": kind}
        for name, kind in zip(names, ("HASH", "RANGE"), strict=False)
    ]


def create_tables(
    client: Any,
    *,
    jobs_table: str = JOBS,
    tasks_table: str = TASKS,
    clock: Clock = SYSTEM_CLOCK,
) -> list[str]:
    """Make the tables that are not there, wait until they can be used, and have rows
    expire by `ttl`; the names of those made now. Those that are there stay as they are.

    Raises ConfigError, StoreUnavailable.
    """
    tables = JobTables(jobs_table, tasks_table)
    expiring = dict.fromkeys((jobs_table, tasks_table), "ttl")
    return ensure_tables(
        client, define_tables(tables), expiring, clock, format_tables_command(tables)
    )


# -- any tables


def ensure_tables(
    client: Any,
    wanted: list[dict[str, Any]],
    expiring: Mapping[str, str],
    clock: Clock,
    command: str,
) -> list[str]:
    """As `create_tables`. `expiring`: tables whose rows expire, with the attribute that
    says conditions. `command`: the one that shows them."""
    call = _Call(client, command)
    made = [one["TableName"] for one in wanted if _create_if_missing(call, one)]
    for one in wanted:
        _wait_until_active(call, one["TableName"], clock)
    for table, attribute in expiring.items():
        _enable_expiry(call, table, attribute)
    return made


def _create_if_missing(call: "_Call", definition: dict[str, Any]) -> bool:
    try:
        call("create_table", **definition)
    except _TableExists:
        return False
    return True


def _wait_until_active(call: "_Call", table: str, clock: Clock) -> None:
    for _ in range(_MAX_POLLS):
        found = call("describe_table", TableName=table)["Table"]
        if found.get("TableStatus") == "ACTIVE":
            return
        clock.sleep(_POLL_SECONDS)
    raise StoreUnavailable(f"DynamoDB: table {table!r} is not ready yet: look again later")


def _enable_expiry(call: "_Call", table: str, attribute: str) -> None:
    now = call("describe_time_to_live", TableName=table)["TimeToLiveDescription"]
    if now.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return  # asking again is an error
    call(
        "update_time_to_live",
        TableName=table,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": attribute},
    )


class _TableExists(Exception):
    """The table is there."""


@dataclass(frozen=True, slots=True)
class _Call:
    client: Any
    tables_command: str

    def __call__(self, operation: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self.client, operation)(**arguments)
        except (BotoCoreError, ClientError) as error:
            if get_error_code(error) == errors.IN_USE:
                raise _TableExists from error
            name = errors.to_api_name(operation)
            raise errors.explain_error(name, error, self.tables_command) from error
