"""Checks of the DynamoDB tables of jobs."""

from collections.abc import Iterator
from typing import Any

from holdfast.doctor.checks import CheckResult
from holdfast.doctor.runner import Check
from holdfast.doctor.stores import Table, check_tables
from holdfast.urls import STORES, parse_url


def check_job_tables(
    url: str, client: Any = None, more: tuple[Check[Table], ...] = ()
) -> Iterator[CheckResult]:
    """Check the tables of a dynamodb: job store, with `more` checks of each table."""
    from holdfast.exports.dynamodb import tables

    prefix = parse_url(url, STORES).path
    names = tables.JobTables(f"{prefix}{tables.JOBS}", f"{prefix}{tables.TASKS}")
    expiring = dict.fromkeys((names.jobs, names.tasks), "ttl")
    command = tables.format_tables_command(names)
    return check_tables(client, tables.define_tables(names), expiring, command, more)
