"""Definitions of tables, and their creation."""

from collections.abc import Mapping
from typing import Any

from holdfast.errors import StoreUnavailable
from holdfast.lease.clock import Clock
from holdfast.store.dynamodb.client import DynamoDBClient

_MAX_POLLS, _POLL_SECONDS = 120, 1.0  # until a new table is active


def define_table(name: str, *keys: str, indexed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the arguments of CreateTable. All key attributes are texts."""
    attributes = [{"AttributeName": key, "AttributeType": "S"} for key in (*keys, *indexed)]
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": attributes,
        "KeySchema": define_key(*keys),
    }


def define_key(*names: str) -> list[dict[str, str]]:
    """Return the schema of a key: its hash, and its range if there is one."""
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
    """Create the missing tables, wait until they are active, and let rows expire.

    Return the names of those created now. Existing tables stay as they are.
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
