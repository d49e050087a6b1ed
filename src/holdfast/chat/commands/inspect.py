"""Find conversations, and the read-only commands `holdfast chat show` and `outbox`."""

import os
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.chat.commands import formatting
from holdfast.chat.formatting import (
    format_body,
    get_received_at,
    has_id_prefix,
    mask_address,
)
from holdfast.cli.arguments import MAX_COUNT, AsJson
from holdfast.cli.console import (
    info,
    print_either,
    print_facts,
    print_json,
    print_list,
    print_result,
)
from holdfast.cli.errors import NotFound, UsageError
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.urls import require_store

if TYPE_CHECKING:
    from holdfast.chat.building import ChatApp
    from holdfast.chat.model import Conversation
    from holdfast.chat.ports import ConversationStore

_POLL_SECONDS = 0.5
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="ADDRESS", help="The customer's address, if several have the same id."
    ),
]


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """The options of commands that show conversations."""

    full: Annotated[
        bool, typer.Option("--full", help="Show phone numbers and addresses unmasked.")
    ] = False
    as_json: AsJson = False


# -- stores


def open_chat() -> "ChatApp":
    """Open the application with an existing store. Raises as `open_store` does."""
    from holdfast.chat.building import build_chat

    _find_store()
    return build_chat(os.environ)


def open_store() -> "ConversationStore":
    """Open only an existing store, which the caller closes.

    Raises ConfigError with every problem of the settings, and StoreUnavailable if the store
    does not exist.
    """
    from holdfast.chat.building import open_conversations

    return open_conversations(_find_store())


def _find_store() -> str:
    from holdfast.chat.settings import ChatSettings
    from holdfast.settings import read_settings

    return require_store(
        read_settings(ChatSettings, os.environ).store_url,
        "there is no conversation store",
        "start one with `holdfast chat send`, or name another store with HOLDFAST_CHAT_STORE",
    )


def find_conversation(
    store: "ConversationStore", name: str, address: str | None
) -> "Conversation":
    """Return the conversation. Raises NotFound, and UsageError if several match."""
    exact = list(store.conversations(name))
    by_prefix = (each for each in store.conversations() if has_id_prefix(each, name))
    found = exact or islice(by_prefix, 2)
    matches = [match for match in found if address in (None, match.key.primary_channel)]
    if not matches:
        raise NotFound(f"there is no conversation {name!r}: see `holdfast chat show`")
    if len(matches) > 1:
        customers = sorted({formatting.format_address(match, full=False) for match in matches})
        raise UsageError(
            f"{name!r} matches several conversations ({', '.join(customers)}): write more of "
            "the id, or add --from"
        )
    return matches[0]


# -- commands


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
    now = SYSTEM_CLOCK.time()
    print_list(
        view.as_json,
        list(store.conversations()),
        lambda each: {
            **formatting.conversation_to_json(each, view.full),
            "staged": staged[each.key],
        },
        formatting.HEADINGS,
        lambda each: formatting.conversation_to_row(each, staged[each.key], now, view.full),
    )


def _show(
    store: "ConversationStore",
    conversation: "Conversation",
    last: int,
    view: ViewOptions,
) -> None:
    name = conversation.key.conversation_id
    staged = sorted(store.staged(name), key=lambda row: (get_received_at(row), row.message_sid))
    history = store.history(conversation.key, limit=last) if last else []
    if view.as_json:
        more = {
            "staged": [{"sid": row.message_sid, "body": format_body(row)} for row in staged],
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
    from holdfast.chat.settings import ChatSettings
    from holdfast.settings import read_settings

    folder = read_settings(ChatSettings, os.environ).outbox_folder
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
    from holdfast.chat.building import read_outbox

    for reply in read_outbox(folder):
        if reply.message_sid in seen:
            continue
        seen.add(reply.message_sid)
        to = reply.to if view.full else mask_address(reply.to)
        name = formatting.format_id(reply.conversation_id, view.full)
        print_either(
            view.as_json,
            {"conversation": name, "to": to, "at": reply.sent_at, "body": reply.text},
            *formatting.format_lines(f"to {to}", reply.sent_at, reply.text),
        )
