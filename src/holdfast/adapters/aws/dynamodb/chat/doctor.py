"""doctor for the five tables: are they there, with their keys, and do rows expire?"""

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
    """Each table, as it is against what it should be."""
    tables = tables_from_prefix(prefix)
    for wanted in define_tables(tables):
        expires_by = tables.expiring.get(wanted["TableName"])
        yield from examine_table(client, wanted, expires_by, format_tables_command(prefix))
