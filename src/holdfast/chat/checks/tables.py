"""Checks of the DynamoDB tables of conversations."""

from collections.abc import Iterator
from typing import Any

from holdfast.doctor.checks import CheckResult
from holdfast.doctor.runner import Check
from holdfast.doctor.stores import Table, check_tables
from holdfast.urls import STORES, parse_url


def check_chat_tables(
    url: str, client: Any = None, more: tuple[Check[Table], ...] = ()
) -> Iterator[CheckResult]:
    """Check the tables of a dynamodb: conversation store, with `more` checks of each table."""
    from holdfast.chat.dynamodb import tables

    prefix = parse_url(url, STORES).path
    names = tables.tables_from_prefix(prefix)
    command = tables.format_tables_command(prefix)
    return check_tables(client, tables.define_tables(names), names.expiring, command, more)
