"""`holdfast chat assign`, `sweep`, `tables` and `doctor`: operate conversations."""

import os
from typing import Annotated

import typer

from holdfast.chat.commands import formatting
from holdfast.chat.commands.inspect import From, find_conversation, open_chat
from holdfast.cli.arguments import AsJson
from holdfast.cli.console import print_either
from holdfast.cli.doctor import CreateTables, print_check_results, show_tables
from holdfast.cli.errors import NotFound, UsageError
from holdfast.cli.formatting import format_duration
from holdfast.text import format_count

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
        str,
        typer.Option(
            "--to",
            metavar="person|writer",
            help="Whether an operator or the writer answers from now on.",
        ),
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
    name = formatting.format_id(key.conversation_id, full=False)
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
    from holdfast.chat.checks import CONVERSATION_STORE
    from holdfast.chat.settings import ChatSettings
    from holdfast.settings import read_settings

    show_tables(
        CONVERSATION_STORE, read_settings(ChatSettings, os.environ).store_url, create, as_json
    )


def doctor(as_json: AsJson = False) -> None:
    """Check settings, store, queues, webhook, profiles and waiting messages for problems."""
    from holdfast.chat.checks import examine_conversations

    print_check_results(examine_conversations("chat", os.environ), as_json)
