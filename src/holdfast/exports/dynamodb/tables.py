"""Names, definitions and creation of the two job tables.

    ExportJobs    jobId            index status-index: status, createdAt
    ExportTasks   jobId, taskId

The index holds only keys, and its range key is `createdAt`. If it held all attributes, or were
ordered by `updatedAt`, each counted result would also be written to the index, where all active
jobs share one partition. When that partition is hot, DynamoDB slows down the writes to the
table itself. With keys only, the index is written when a status changes, three times in the
life of a job, and complete jobs are read from the table.
"""

from dataclasses import dataclass
from typing import Any

from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.store.dynamodb.tables import define_key, define_table, ensure_tables

JOBS, TASKS = "ExportJobs", "ExportTasks"
STATUS_INDEX = "status-index"


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
        "KeySchema": define_key("status", "createdAt"),
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
