"""`holdfast chat show` and `outbox`. Neither changes anything."""

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import MAX_COUNT, AsJson
from holdfast.cli.chat import formatting
from holdfast.cli.chat.finding import From, Full, store, the_one
from holdfast.cli.console import (
    info,
    print_json,
    print_result,
    print_table,
    strip_control_characters,
)
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.conversations.model import Conversation
    from holdfast.conversations.ports import ConversationStore

_LOOK_SECONDS = 0.5


def show(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONVERSATION]",
            help="Its id, or enough of the beginning; without one all are listed.",
        ),
    ] = None,
    address: From = None,
    last: Annotated[
        int, typer.Option(min=0, max=MAX_COUNT, help="So many messages of the history.")
    ] = 20,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """The conversations there are, or one with its history and what is under way."""
    with store() as kept:
        if conversation is None:
            _list(kept, full, as_json)
        else:
            _show(kept, the_one(kept, conversation, address), last, full, as_json)


def _list(kept: "ConversationStore", full: bool, as_json: bool) -> None:
    staged = Counter({one.key: one.fragments for one in kept.waiting()})
    found = list(kept.conversations())
    if as_json:
        print_json(
            [{**formatting.as_json(one, full), "staged": staged[one.key]} for one in found]
        )
        return
    now = SYSTEM_CLOCK.time()
    rows = [formatting.row_of(one, staged[one.key], now, full) for one in found]
    print_table(formatting.HEADINGS, rows)


def _show(
    kept: "ConversationStore", one: "Conversation", last: int, full: bool, as_json: bool
) -> None:
    name = one.key.conversation_id
    staged = sorted(
        kept.staged(name), key=lambda row: (formatting.staged_at(row), row.message_sid)
    )
    history = kept.history(one.key, limit=last) if last else []
    if as_json:
        more = {
            "staged": [
                {"sid": row.message_sid, "body": formatting.body_of(row)} for row in staged
            ],
            "history": [formatting.message_json(message) for message in history],
        }
        print_json({**formatting.as_json(one, full), **more})
        return
    for heading, text in formatting.story(one, kept.window(name), SYSTEM_CLOCK.time(), full):
        print_result(f"{heading:<14} {strip_control_characters(text)}")
    lines = [line for message in history for line in formatting.said(message)]
    for row in staged:
        lines += formatting.lines_of(
            "staged", formatting.staged_at(row), formatting.body_of(row)
        )
    if lines:
        print_result("")
    for line in lines:
        print_result(line)


def outbox(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more until Ctrl-C.")
    ] = False,
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """What was sent to the outbox folder: the replies of local use."""
    from holdfast.config.chat import chat_settings

    folder = chat_settings(os.environ).outbox_folder
    seen: set[str] = set()
    try:
        while True:
            _show_new(folder, seen, full, as_json)
            if not follow:
                break
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:  # how one leaves a view like this
        return
    if not seen:
        info(f"nothing was sent to {folder}")


def _show_new(folder: Path, seen: set[str], full: bool, as_json: bool) -> None:
    from holdfast.bootstrap.chats import sent_to

    for one in sent_to(folder):
        if one.message_sid in seen:
            continue
        seen.add(one.message_sid)
        to = one.to if full else formatting.masked(one.to)
        if as_json:
            name = formatting.id_of(one.conversation_id, full)
            print_json({"conversation": name, "to": to, "at": one.sent_at, "body": one.text})
            continue
        for line in formatting.lines_of(
            f"to {strip_control_characters(to)}", one.sent_at, one.text
        ):
            print_result(line)
