"""Keeping conversations in order: `sweep`, `tables` and `doctor`."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.chat.finding import chat
from holdfast.cli.console import info, print_json, print_result
from holdfast.cli.durations import in_words
from holdfast.cli.errors import UsageError
from holdfast.cli.maintenance import answer_findings


def sweep(as_json: AsJson = False) -> None:
    """Find messages whose trigger was lost, and send another one. `work` does it, too."""
    with chat() as app:
        swept = app.sweeper.sweep()
    if as_json:
        print_json(asdict(swept))
        return
    oldest = f", the oldest for {in_words(swept.oldest_seconds)}" if swept.waiting else ""
    print_result(
        f"{swept.waiting:,} conversations wait{oldest}; {swept.triggered:,} triggered, "
        f"{swept.parked:,} parked"
    )


def tables(
    create: Annotated[
        bool, typer.Option("--create", help="Make the tables that are not there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether the DynamoDB tables of conversations are right."""
    from holdfast.bootstrap.chat_checks import chat_table_findings, create_chat_tables
    from holdfast.config.chat import chat_settings

    store = chat_settings(os.environ).store_url
    if not store.startswith("dynamodb:"):
        raise UsageError(
            "conversations are in a file, which needs no tables; for DynamoDB set "
            "HOLDFAST_CHAT_STORE, as in HOLDFAST_CHAT_STORE=dynamodb:"
        )
    if create:
        for name in create_chat_tables(store):
            info(f"made {name}")
    answer_findings(chat_table_findings(store), as_json)


def doctor(as_json: AsJson = False) -> None:
    """Look for what will hurt: settings, store, queues, profiles, what waits too long."""
    from holdfast.bootstrap.chat_checks import chat_findings

    answer_findings(chat_findings(os.environ), as_json)
