"""The read-only commands `holdfast chat show` and `outbox`."""

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import MAX_COUNT
from holdfast.cli.chat import formatting
from holdfast.cli.chat.lookup import From, ViewOptions, find_conversation, open_store
from holdfast.cli.console import (
    info,
    print_facts,
    print_json,
    print_result,
    print_table,
)
from holdfast.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from holdfast.conversations.model import Conversation
    from holdfast.conversations.ports import ConversationStore

_POLL_SECONDS = 0.5


def show(
    conversation: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONVERSATION]",
            help="Its id, or the beginning of it; without one, all conversations are listed.",
        ),
    ] = None,
    address: From = None,
    last: Annotated[
        int, typer.Option(min=0, max=MAX_COUNT, help="Show this many messages of the history.")
    ] = 20,
    *,
    view: ViewOptions,
) -> None:
    """List all conversations, or show one with its history and staged messages."""
    with open_store() as store:
        if conversation is None:
            _list(store, view)
        else:
            _show(store, find_conversation(store, conversation, address), last, view)


def _list(store: "ConversationStore", view: ViewOptions) -> None:
    staged = Counter({waiting.key: waiting.fragments for waiting in store.waiting()})
    conversations = list(store.conversations())
    if view.as_json:
        print_json(
            [
                {
                    **formatting.conversation_to_json(conversation, view.full),
                    "staged": staged[conversation.key],
                }
                for conversation in conversations
            ]
        )
        return
    now = SYSTEM_CLOCK.time()
    rows = [
        formatting.conversation_to_row(conversation, staged[conversation.key], now, view.full)
        for conversation in conversations
    ]
    print_table(formatting.HEADINGS, rows)


def _show(
    store: "ConversationStore",
    conversation: "Conversation",
    last: int,
    view: ViewOptions,
) -> None:
    name = conversation.key.conversation_id
    staged = sorted(
        store.staged(name), key=lambda row: (formatting.get_received_at(row), row.message_sid)
    )
    history = store.history(conversation.key, limit=last) if last else []
    if view.as_json:
        more = {
            "staged": [
                {"sid": row.message_sid, "body": formatting.format_body(row)} for row in staged
            ],
            "history": [formatting.history_to_json(message) for message in history],
        }
        print_json({**formatting.conversation_to_json(conversation, view.full), **more})
        return
    window, now = store.window(name), SYSTEM_CLOCK.time()
    print_facts(formatting.describe_conversation(conversation, window, now, view.full))
    lines = [line for message in history for line in formatting.format_history(message)]
    for row in staged:
        lines += formatting.format_staged("staged", row)
    if lines:
        print_result("", *lines)


def outbox(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more until Ctrl-C.")
    ] = False,
    *,
    view: ViewOptions,
) -> None:
    """Show the replies in the outbox folder, where local use puts them."""
    from holdfast.config.chat import read_chat_settings

    folder = read_chat_settings(os.environ).outbox_folder
    seen: set[str] = set()
    try:
        while True:
            _show_new(folder, seen, view)
            if not follow:
                break
            SYSTEM_CLOCK.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:  # the normal way to end this
        return
    if not seen:
        info(f"there are no replies in {folder}")


def _show_new(folder: Path, seen: set[str], view: ViewOptions) -> None:
    from holdfast.bootstrap.chats import read_outbox

    for reply in read_outbox(folder):
        if reply.message_sid in seen:
            continue
        seen.add(reply.message_sid)
        to = reply.to if view.full else formatting.mask_address(reply.to)
        if view.as_json:
            name = formatting.format_id(reply.conversation_id, view.full)
            print_json(
                {"conversation": name, "to": to, "at": reply.sent_at, "body": reply.text}
            )
            continue
        print_result(*formatting.format_lines(f"to {to}", reply.sent_at, reply.text))
