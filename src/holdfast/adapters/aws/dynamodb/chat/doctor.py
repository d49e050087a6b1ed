"""Checks of the five conversation tables: existence, keys and row expiry."""

from collections.abc import Iterator
from typing import Any

from holdfast.adapters.aws.dynamodb.chat.tables import (
    define_tables,
    format_tables_command,
    tables_from_prefix,
)
from holdfast.adapters.aws.dynamodb.doctor import examine_table
from holdfast.core.checks import CheckResult


def examine(client: Any, prefix: str = "") -> Iterator[CheckResult]:
    """Compare each table with its definition and yield the check results."""
    tables = tables_from_prefix(prefix)
    for definition in define_tables(tables):
        expires_by = tables.expiring.get(definition["TableName"])
        yield from examine_table(client, definition, expires_by, format_tables_command(prefix))
