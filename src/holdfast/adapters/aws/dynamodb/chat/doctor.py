"""doctor for the five tables: are they there, with their keys, and do rows expire?"""

from collections.abc import Iterator
from typing import Any

from holdfast.adapters.aws.dynamodb.chat.tables import definitions, tables_command, tables_of
from holdfast.adapters.aws.dynamodb.doctor import examine_table
from holdfast.core.checks import CheckResult


def examine(client: Any, prefix: str = "") -> Iterator[CheckResult]:
    """Each table, as it is against what it should be."""
    tables = tables_of(prefix)
    for wanted in definitions(tables):
        expires_by = tables.expiring.get(wanted["TableName"])
        yield from examine_table(client, wanted, expires_by, tables_command(prefix))
