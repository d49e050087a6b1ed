"""`holdfast chat assign`, `sweep`, `tables` and `doctor`: operate conversations."""

import os
from typing import Annotated

import typer

from holdfast.chat.commands.inspect import MASKED, From, find_conversation, open_chat
from holdfast.cli.arguments import AsJson
from holdfast.cli.console import print_either
from holdfast.cli.errors import NotFound, UsageError
from holdfast.cli.maintenance import CreateTables, check_tables, print_check_results
from holdfast.text import format_count, format_duration

_ASSIGNMENTS = {
    "person": "a person answers; new batches are parked (`holdfast chat parked`)",
    "writer": "the writer answers again",
}


def assign(
    conversation: Annotated[
        str, typer.Argument(metavar="CONVERSATION", help="Its id, or the beginning of it.")
    ],
    *,
    to: Annotated[
        str, "person|writer", "Whether an operator or the writer answers from now on."
    ],
    address: From = None,
    as_json: AsJson = False,
) -> None:
    """Assign a conversation to a person, so that its batches are parked, or to the writer."""
    if to not in ("person", "writer"):
        raise UsageError(f"--to must be person or writer; got {to!r}")
    with open_chat() as app:
        key = find_conversation(app.store, conversation, address).key
        changed = (
            app.operator.assign_to_person(key)
            if to == "person"
            else app.operator.resume_automation(key)
        )
    name = MASKED.format_id(key.conversation_id)
    if not changed:
        raise NotFound(f"conversation {name!r} no longer exists")
    print_either(as_json, {"conversation": name, "with": to}, f"{name}: {_ASSIGNMENTS[to]}")


# -- maintenance


def sweep(as_json: AsJson = False) -> None:
    """Send new triggers for messages whose trigger was lost. `work` does this too."""
    with open_chat() as app:
        swept = app.sweeper.sweep()
    oldest = (
        f", the longest for {format_duration(swept.oldest_seconds)}" if swept.waiting else ""
    )
    print_either(
        as_json,
        swept,
        f"{format_count(swept.waiting, 'conversation')} waiting{oldest}; "
        f"{swept.triggered:,} triggered, "
        f"{swept.parked:,} parked",
    )


def tables(
    create: CreateTables = False,
    as_json: AsJson = False,
) -> None:
    """Check the DynamoDB tables of conversations."""
    from holdfast.chat.building import create_chat_tables
    from holdfast.chat.checks.tables import check_chat_tables
    from holdfast.chat.settings import read_chat_settings

    store = read_chat_settings(os.environ).store_url
    make = create_chat_tables if create else None
    check_tables(store, "HOLDFAST_CHAT_STORE", make, check_chat_tables, as_json)


def doctor(as_json: AsJson = False) -> None:
    """Check settings, store, queues, webhook, profiles and waiting messages for problems."""
    from holdfast.chat.building import check_chat

    print_check_results(check_chat(os.environ), as_json)
