"""Names, definitions and creation of the two job tables.

    ExportJobs    jobId            index status-index: status, createdAt
    ExportTasks   jobId, taskId

The index holds only keys, and its range key is `createdAt`. If it held all attributes, or were
ordered by `updatedAt`, each counted result would also be written to the index, where all active
jobs share one partition. When that partition is hot, DynamoDB slows down the writes to the
table itself. With keys only, the index is written when a status changes, three times in the
life of a job, and complete jobs are read from the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.adapters.aws.dynamodb.client import DynamoDBClient
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.jobs.errors import StoreUnavailable

JOBS, TASKS = "ExportJobs", "ExportTasks"
STATUS_INDEX = "status-index"
_MAX_POLLS, _POLL_SECONDS = 120, 1.0  # until a new table is active


@dataclass(frozen=True, slots=True)
class JobTables:
    """The names of the two tables."""

    jobs: str = JOBS
    tasks: str = TASKS


def format_tables_command(tables: JobTables) -> str:
    """Return the shell command that shows these tables."""
    prefix = tables.jobs.removesuffix(JOBS)
    has_common_prefix = tables == JobTables(f"{prefix}{JOBS}", f"{prefix}{TASKS}")
    return f"holdfast export tables --jobs dynamodb:{prefix if has_common_prefix else 'PREFIX'}"


def define_tables(tables: JobTables) -> list[dict[str, Any]]:
    """Return the arguments of CreateTable for both tables.

    Billing is on demand, so no capacity must be guessed, and a low default cannot slow down all
    workers.
    """
    index = {
        "IndexName": STATUS_INDEX,
        "KeySchema": _define_key("status", "createdAt"),
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }
    jobs = define_table(tables.jobs, "jobId", indexed=("status", "createdAt"))
    return [
        {**jobs, "GlobalSecondaryIndexes": [index]},
        define_table(tables.tasks, "jobId", "taskId"),
    ]


def create_tables(
    client: Any,
    *,
    jobs_table: str = JOBS,
    tasks_table: str = TASKS,
    clock: Clock = SYSTEM_CLOCK,
) -> list[str]:
    """Create the missing tables, wait until they are active, and let rows expire by `ttl`.

    Returns the names of the tables created now. Existing tables stay as they are. Raises
    ConfigError or StoreUnavailable.
    """
    tables = JobTables(jobs_table, tasks_table)
    expiring = dict.fromkeys((jobs_table, tasks_table), "ttl")
    return ensure_tables(
        client, define_tables(tables), expiring, clock, format_tables_command(tables)
    )


# -- any tables


def define_table(name: str, *keys: str, indexed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the arguments of CreateTable. All key attributes are texts."""
    attributes = [{"AttributeName": key, "AttributeType": "S"} for key in (*keys, *indexed)]
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": attributes,
        "KeySchema": _define_key(*keys),
    }


def _define_key(*names: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": name, "KeyType": kind}
        for name, kind in zip(names, ("HASH", "RANGE"), strict=False)
    ]


def ensure_tables(
    client: Any,
    tables: list[dict[str, Any]],
    expiring: Mapping[str, str],
    clock: Clock,
    command: str,
) -> list[str]:
    """Create missing tables as `create_tables` does, and return the names of those created now.

    `expiring` maps a table whose rows expire to the attribute that holds the time. `command` is
    the command that shows the tables.
    """
    dynamodb = DynamoDBClient(client, clock, tables_command=command)
    created = [table["TableName"] for table in tables if dynamodb.create_table(table)]
    for table in tables:
        _wait_until_active(dynamodb, table["TableName"], clock)
    for name, attribute in expiring.items():
        _enable_expiry(dynamodb, name, attribute)
    return created


def _wait_until_active(dynamodb: DynamoDBClient, table: str, clock: Clock) -> None:
    for _ in range(_MAX_POLLS):
        description = dynamodb.call("describe_table", TableName=table)["Table"]
        if description.get("TableStatus") == "ACTIVE":
            return
        clock.sleep(_POLL_SECONDS)
    raise StoreUnavailable(f"DynamoDB table {table!r} is not active yet: try again later")


def _enable_expiry(dynamodb: DynamoDBClient, table: str, attribute: str) -> None:
    response = dynamodb.call("describe_time_to_live", TableName=table)
    description = response["TimeToLiveDescription"]
    if description.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return  # enabling it again is an error
    dynamodb.call(
        "update_time_to_live",
        TableName=table,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": attribute},
    )
