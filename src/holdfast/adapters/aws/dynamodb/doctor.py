"""Checks of the two job tables: existence, keys, index and row expiry."""

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.adapters.aws.dynamodb import errors
from holdfast.adapters.aws.dynamodb.tables import (
    STATUS_INDEX,
    JobTables,
    define_tables,
    format_tables_command,
)
from holdfast.adapters.aws.errors import get_error_code
from holdfast.core.checks import CheckResult, fail, ok, warn

_RECREATE = "a key cannot be changed: use other names (dynamodb:PREFIX) or recreate the table"


def examine(client: Any, tables: JobTables) -> Iterator[CheckResult]:
    """Compare each table with its definition and yield the check results."""
    for definition in define_tables(tables):
        yield from examine_table(client, definition, "ttl", format_tables_command(tables))


def examine_table(
    client: Any,
    definition: Mapping[str, Any],
    expires_by: str | None,
    command: str,
) -> Iterator[CheckResult]:
    """Compare one table with its definition and yield the check results.

    `expires_by` is the attribute that holds a row's expiry, or None if rows do not expire.
    `command` is the command that shows the tables.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    name = definition["TableName"]
    try:
        table = client.describe_table(TableName=name)["Table"]
        expiry = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    except (BotoCoreError, ClientError) as error:
        if get_error_code(error) in errors.NO_TABLE:
            yield fail(
                "table", f"{name} does not exist", f"create it with `{command} --create`"
            )
        else:
            reason = str(errors.explain_error("DescribeTable", error, command))
            yield fail(
                "table", f"{name}: {reason}", "check that this machine can reach DynamoDB"
            )
        return
    yield _check_keys(name, table, definition)
    for index in definition.get("GlobalSecondaryIndexes", ()):
        yield _check_index(name, table, index)
    if expires_by is not None:
        yield _check_expiry(name, expiry, expires_by)


def _check_keys(
    name: str, table: Mapping[str, Any], definition: Mapping[str, Any]
) -> CheckResult:
    actual, expected = _format_key(table), _format_key(definition)
    if actual != expected:
        return fail("table", f"{name} has the key {actual}, expected {expected}", _RECREATE)
    if table.get("TableStatus") != "ACTIVE":
        state = str(table.get("TableStatus")).lower()
        return warn("table", f"{name} is {state}", "check again in a minute")
    return ok("table", f"{name}: {actual}")


def _check_index(
    name: str, table: Mapping[str, Any], definition: Mapping[str, Any]
) -> CheckResult:
    indexes = {entry["IndexName"]: entry for entry in table.get("GlobalSecondaryIndexes") or ()}
    index = indexes.get(definition["IndexName"])
    if index is None:
        return fail(
            "index",
            f"{name} has no {STATUS_INDEX}, so active jobs are not found and get no heartbeats",
            f"add it: {_format_key(definition)}, keys only",
        )
    actual, expected = _format_key(index), _format_key(definition)
    if actual.split(", ")[0] != expected.split(", ")[0]:
        return fail(
            "index", f"{STATUS_INDEX} has the key {actual}, expected {expected}", "recreate it"
        )
    if actual != expected or index.get("Projection", {}).get("ProjectionType") != "KEYS_ONLY":
        return warn(
            "index",
            f"{STATUS_INDEX} has the key {actual} and holds more than keys: each counted "
            "result may be written twice, and all active jobs share one partition",
            f"recreate it: {expected}, keys only",
        )
    return ok("index", f"{STATUS_INDEX}: {actual}, keys only")


def _check_expiry(name: str, description: Mapping[str, Any], attribute: str) -> CheckResult:
    actual = description.get("AttributeName")
    if description.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") and actual == attribute:
        return ok("expiry", f"{name}: finished rows expire by {attribute}")
    return warn(
        "expiry",
        f"{name} keeps finished rows forever",
        f"enable time to live on the attribute {attribute}; `--create` does it",
    )


def _format_key(schema: Mapping[str, Any]) -> str:
    order = {"HASH": 0, "RANGE": 1}
    parts = sorted(schema.get("KeySchema") or (), key=lambda part: order[part["KeyType"]])
    return ", ".join(part["AttributeName"] for part in parts)
