"""doctor for the two tables: are they there, with the keys and the index that jobs need?"""

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

_RECREATE = "it cannot be changed: use other names (dynamodb:PREFIX), or make the table anew"


def examine(client: Any, tables: JobTables) -> Iterator[CheckResult]:
    """Each table, as it is against what it should be."""
    for wanted in define_tables(tables):
        yield from examine_table(client, wanted, "ttl", format_tables_command(tables))


def examine_table(
    client: Any,
    wanted: Mapping[str, Any],
    expires_by: str | None,
    command: str,
) -> Iterator[CheckResult]:
    """Any table, against its definition. `expires_by`: the attribute that says when a row
    may go; None: rows stay. `command` shows the tables."""
    from botocore.exceptions import BotoCoreError, ClientError

    name = wanted["TableName"]
    try:
        found = client.describe_table(TableName=name)["Table"]
        expiry = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    except (BotoCoreError, ClientError) as error:
        if get_error_code(error) in errors.NO_TABLE:
            yield fail("table", f"{name} is not there", f"make it with `{command} --create`")
        else:
            why = str(errors.explain_error("DescribeTable", error, command))
            yield fail("table", f"{name}: {why}", "see that this machine reaches DynamoDB")
        return
    yield _check_keys(name, found, wanted)
    for index in wanted.get("GlobalSecondaryIndexes", ()):
        yield _check_index(name, found, index)
    if expires_by is not None:
        yield _check_expiry(name, expiry, expires_by)


def _check_keys(name: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> CheckResult:
    is_, should = _format_key(found), _format_key(wanted)
    if is_ != should:
        return fail("table", f"{name} has the key {is_}, and it should be {should}", _RECREATE)
    if found.get("TableStatus") != "ACTIVE":
        state = str(found.get("TableStatus")).lower()
        return warn("table", f"{name} is {state}", "look again in a minute")
    return ok("table", f"{name}: {is_}")


def _check_index(name: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> CheckResult:
    there = {one["IndexName"]: one for one in found.get("GlobalSecondaryIndexes") or ()}
    index = there.get(wanted["IndexName"])
    if index is None:
        return fail(
            "index",
            f"{name} has no {STATUS_INDEX}: no active job is found, so none is beaten",
            f"add it: {_format_key(wanted)}, keys only",
        )
    is_, should = _format_key(index), _format_key(wanted)
    if is_.split(", ")[0] != should.split(", ")[0]:
        return fail("index", f"{STATUS_INDEX} is by {is_}, not by {should}", "make it anew")
    if is_ != should or index.get("Projection", {}).get("ProjectionType") != "KEYS_ONLY":
        return warn(
            "index",
            f"{STATUS_INDEX} is by {is_} and holds more than keys: each result that is "
            "counted may be written twice, and all active jobs share one partition",
            f"make it anew: {should}, keys only",
        )
    return ok("index", f"{STATUS_INDEX}: {is_}, keys only")


def _check_expiry(name: str, found: Mapping[str, Any], attribute: str) -> CheckResult:
    by = found.get("AttributeName")
    if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING") and by == attribute:
        return ok("expiry", f"{name}: finished rows expire by {attribute}")
    return warn(
        "expiry",
        f"{name} keeps finished rows for ever",
        f"switch its time to live on, by the attribute {attribute}; `--create` does it",
    )


def _format_key(schema: Mapping[str, Any]) -> str:
    order = {"HASH": 0, "RANGE": 1}
    parts = sorted(schema.get("KeySchema") or (), key=lambda part: order[part["KeyType"]])
    return ", ".join(part["AttributeName"] for part in parts)
