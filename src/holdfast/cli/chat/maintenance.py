"""The maintenance commands `holdfast chat sweep`, `tables` and `doctor`."""

import os
from dataclasses import asdict

from holdfast.cli.arguments import AsJson
from holdfast.cli.chat.lookup import open_chat
from holdfast.cli.console import print_json, print_result
from holdfast.cli.formatting import format_duration
from holdfast.cli.maintenance import CreateTables, check_tables, print_check_results


def sweep(as_json: AsJson = False) -> None:
    """Send new triggers for messages whose trigger was lost. `work` does this too."""
    with open_chat() as app:
        swept = app.sweeper.sweep()
    if as_json:
        print_json(asdict(swept))
        return
    oldest = (
        f", the longest for {format_duration(swept.oldest_seconds)}" if swept.waiting else ""
    )
    print_result(
        f"{swept.waiting:,} conversations wait{oldest}; {swept.triggered:,} triggered, "
        f"{swept.parked:,} parked"
    )


def tables(
    create: CreateTables = False,
    as_json: AsJson = False,
) -> None:
    """Check the DynamoDB tables of conversations."""
    from holdfast.bootstrap.chats import create_chat_tables
    from holdfast.config.chat import read_chat_settings
    from holdfast.doctor.stores import check_chat_tables

    store = read_chat_settings(os.environ).store_url
    make = create_chat_tables if create else None
    check_tables(store, "HOLDFAST_CHAT_STORE", make, check_chat_tables, as_json)


def doctor(as_json: AsJson = False) -> None:
    """Check settings, store, queues, profiles and waiting messages for problems."""
    from holdfast.bootstrap.chats import check_chat

    print_check_results(check_chat(os.environ), as_json)
