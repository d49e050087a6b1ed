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
from holdfast.adapters.aws.errors import code_of
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.jobs.errors import StoreUnavailable

JOBS, TASKS = "ExportJobs", "ExportTasks"
STATUS_INDEX = "status-index"
_LOOKS, _LOOK_SECONDS = 120, 1.0  # until a new table can be used


@dataclass(frozen=True, slots=True)
class JobTables:
    jobs: str = JOBS
    tasks: str = TASKS


def tables_command(tables: JobTables) -> str:
    """Return the command that shows these tables, as it can be pasted."""
    prefix = tables.jobs.removesuffix(JOBS)
    named_alike = tables == JobTables(f"{prefix}{JOBS}", f"{prefix}{TASKS}")
    return f"holdfast export tables --jobs dynamodb:{prefix if named_alike else 'PREFIX'}"


def definitions(tables: JobTables) -> list[dict[str, Any]]:
    """As CreateTable takes them. Paid by use: nothing to guess, and no five writes a
    second that hold up a whole fleet."""
    return [_jobs(tables.jobs), _tasks(tables.tasks)]


def _jobs(name: str) -> dict[str, Any]:
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": texts("jobId", "status", "createdAt"),
        "KeySchema": key("jobId"),
        "GlobalSecondaryIndexes": [
            {
                "IndexName": STATUS_INDEX,
                "KeySchema": key("status", "createdAt"),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    }


def _tasks(name: str) -> dict[str, Any]:
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": texts("jobId", "taskId"),
        "KeySchema": key("jobId", "taskId"),
    }


def texts(*names: str) -> list[dict[str, str]]:
    return [{"AttributeName": name, "AttributeType": "S"} for name in names]


def key(*names: str) -> list[dict[str, str]]:
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
    return provide(client, definitions(tables), expiring, clock, tables_command(tables))


# -- any tables


def provide(
    client: Any,
    wanted: list[dict[str, Any]],
    expiring: Mapping[str, str],
    clock: Clock,
    command: str,
) -> list[str]:
    """As `create_tables`. `expiring`: tables whose rows expire, with the attribute that
    says when. `command`: the one that shows them."""
    call = _Call(client, command)
    made = [one["TableName"] for one in wanted if _made(call, one)]
    for one in wanted:
        _await_active(call, one["TableName"], clock)
    for table, attribute in expiring.items():
        _let_rows_expire(call, table, attribute)
    return made


def _made(call: "_Call", definition: dict[str, Any]) -> bool:
    try:
        call("create_table", **definition)
    except _InUse:
        return False
    return True


def _await_active(call: "_Call", table: str, clock: Clock) -> None:
    for _ in range(_LOOKS):
        found = call("describe_table", TableName=table)["Table"]
        if found.get("TableStatus") == "ACTIVE":
            return
        clock.sleep(_LOOK_SECONDS)
    raise StoreUnavailable(f"DynamoDB: table {table!r} is not ready yet: look again later")


def _let_rows_expire(call: "_Call", table: str, attribute: str) -> None:
    now = call("describe_time_to_live", TableName=table)["TimeToLiveDescription"]
    if now.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return  # asking again is an error
    call(
        "update_time_to_live",
        TableName=table,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": attribute},
    )


class _InUse(Exception):
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
            if code_of(error) == errors.IN_USE:
                raise _InUse from error
            name = errors.name_of(operation)
            raise errors.explained(name, error, self.tables_command) from error
