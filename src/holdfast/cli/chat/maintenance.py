"""`holdfast chat parked`, `assign`, `sweep`, `tables` and `doctor`: operate conversations."""

import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdfast.cli.arguments import AsJson, WithBody, Yes
from holdfast.cli.chat import formatting
from holdfast.cli.chat.inspect import (
    From,
    ViewOptions,
    find_conversation,
    open_chat,
    open_store,
)
from holdfast.cli.console import confirm_drop, print_either, print_list, print_result
from holdfast.cli.errors import NotFound, UsageError
from holdfast.cli.formatting import format_age, format_duration
from holdfast.cli.ids import complete_id
from holdfast.cli.maintenance import CreateTables, check_tables, print_check_results
from holdfast.conversations.errors import ParkedNotFound
from holdfast.conversations.outbox import get_outbox_state
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.text import format_count

if TYPE_CHECKING:
    from holdfast.conversations.model import ParkedBatch

_HEADINGS = ("parked", "conversation", "messages", "reply", "age", "reason")
Decision = Literal["retry", "sent", "drop"]


def parked(
    retry: Annotated[
        str | None, typer.Option(metavar="ID", help="Answer this batch after all.")
    ] = None,
    sent: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Record this batch's reply as sent."),
    ] = None,
    drop: Annotated[
        str | None, typer.Option(metavar="ID", help="Drop this batch without a reply.")
    ] = None,
    yes: Yes = False,
    bodies: WithBody = False,
    *,
    view: ViewOptions,
) -> None:
    """List parked batches with their reasons, or decide about one of them."""
    given: dict[Decision, str | None] = {"retry": retry, "sent": sent, "drop": drop}
    decisions = [(decision, name) for decision, name in given.items() if name is not None]
    if len(decisions) > 1:
        raise UsageError("--retry, --sent and --drop cannot be combined; give one of them")
    if decisions:
        _decide(*decisions[0], view, yes=yes)
    else:
        _list(bodies, view)


def _list(bodies: bool, view: ViewOptions) -> None:
    with open_store() as store:
        batches = list(store.parked())
    print_list(
        view.as_json,
        batches,
        lambda batch: formatting.parked_to_json(batch, view.full),
        _HEADINGS,
        lambda batch: _batch_to_row(batch, view.full),
    )
    for batch in batches if bodies and not view.as_json else ():
        print_result("", batch.parked_id)
        for row in batch.staged:
            print_result(*formatting.format_staged("customer", row))


def _batch_to_row(batch: "ParkedBatch", full: bool) -> tuple[str, ...]:
    return (
        batch.parked_id,
        formatting.format_id(batch.key.conversation_id, full),
        f"{len(batch.staged)}",
        "-" if batch.outbox is None else get_outbox_state(batch.outbox),
        format_age(batch.parked_at, SYSTEM_CLOCK.time()),
        batch.reason,
    )


_CONFIRMATIONS = {
    "retry": "staged again; `holdfast chat work` answers it",
    "sent": "its reply is recorded as sent",
    "drop": "dropped",
    "person": "a person answers; new batches are parked (`holdfast chat parked`)",
    "writer": "the writer answers again",
}


def _decide(decision: Decision, parked_id: str, view: ViewOptions, *, yes: bool) -> None:
    with open_chat() as app:
        batches = app.store.parked()
        parked_id = complete_id(parked_id, (batch.parked_id for batch in batches))
        if decision == "drop" and not yes:
            confirm_drop("Permanently drop these messages without a reply?")
        try:
            operator = app.operator
            decide = {"retry": operator.retry, "sent": operator.sent, "drop": operator.drop}
            batch = decide[decision](parked_id)
        except ParkedNotFound:
            raise NotFound(
                f"there is no parked batch {parked_id!r}: see `holdfast chat parked`"
            ) from None
    text = f"{batch.parked_id}: {_CONFIRMATIONS[decision]}"
    print_either(view.as_json, formatting.parked_to_json(batch, view.full), text)


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
    print_either(as_json, {"conversation": name, "with": to}, f"{name}: {_CONFIRMATIONS[to]}")


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
