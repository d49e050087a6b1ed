"""The maintenance commands `holdfast chat sweep`, `tables` and `doctor`."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.chat.lookup import open_chat
from holdfast.cli.console import info, print_json, print_result
from holdfast.cli.durations import format_duration
from holdfast.cli.errors import UsageError
from holdfast.cli.maintenance import print_check_results


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
    create: Annotated[
        bool, typer.Option("--create", help="Create the missing tables.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the DynamoDB tables of conversations."""
    from holdfast.bootstrap.chats import create_chat_tables
    from holdfast.config.chat import read_chat_settings
    from holdfast.doctor.tables import check_chat_tables

    store = read_chat_settings(os.environ).store_url
    if not store.startswith("dynamodb:"):
        raise UsageError(
            f"HOLDFAST_CHAT_STORE must be dynamodb:PREFIX; got {store!r}, and a file needs no "
            "tables"
        )
    if create:
        for name in create_chat_tables(store):
            info(f"created {name}")
    print_check_results(check_chat_tables(store), as_json)


def doctor(as_json: AsJson = False) -> None:
    """Check settings, store, queues, profiles and waiting messages for problems."""
    from holdfast.bootstrap.chats import check_chat

    print_check_results(check_chat(os.environ), as_json)
