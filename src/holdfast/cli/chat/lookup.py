"""Open an existing store and find the conversation that the user means."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson
from holdfast.cli.chat.formatting import mask_address
from holdfast.cli.errors import NotFound, UsageError
from holdfast.conversations.model import redact_id
from holdfast.core.errors import StoreUnavailable
from holdfast.core.urls import find_store_file

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.config.chat import ChatSettings
    from holdfast.conversations.model import Conversation
    from holdfast.conversations.ports import ConversationStore

ConversationName = Annotated[
    str,
    typer.Argument(metavar="CONVERSATION", help="Its id, or the beginning of it."),
]
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


@contextmanager
def open_chat() -> "Iterator[ChatApp]":
    """Open the application with an existing store. Raises as `require_store` does."""
    from holdfast.bootstrap.chats import build_chat

    require_store()
    with build_chat(os.environ) as app:
        yield app


@contextmanager
def open_store() -> "Iterator[ConversationStore]":
    """Open only an existing store. Raises as `require_store` does."""
    from holdfast.bootstrap.chats import open_conversations

    with open_conversations(require_store().store_url) as store:
        yield store


def require_store() -> "ChatSettings":
    """Return the settings.

    Raises ConfigError with every problem, and StoreUnavailable if the store does not exist,
    because read-only commands never create the store.
    """
    from holdfast.config.chat import read_chat_settings

    settings = read_chat_settings(os.environ)
    file = find_store_file(settings.store_url)
    if file is not None and not file.exists():
        raise StoreUnavailable(
            f"there is no conversation store {str(file)!r}: start one with "
            "`holdfast chat send`, or name another store with HOLDFAST_CHAT_STORE"
        )
    return settings


def find_conversation(
    store: "ConversationStore", name: str, address: str | None
) -> "Conversation":
    """Return the conversation. Raises NotFound, and UsageError if several match."""
    matches = list(_find_matches(store, name, address))
    if not matches:
        raise NotFound(f"there is no conversation {name!r}: see `holdfast chat show`")
    if len(matches) > 1:
        customers = sorted({mask_address(match.key.primary_channel) for match in matches})
        raise UsageError(
            f"{name!r} matches several conversations ({', '.join(customers)}): write more of "
            "the id, or add --from"
        )
    return matches[0]


def _find_matches(
    store: "ConversationStore", name: str, address: str | None
) -> "Iterator[Conversation]":
    exact = list(store.conversations(name))
    by_prefix = (each for each in store.conversations() if _has_prefix(each, name))
    matches = exact or islice(by_prefix, 2)
    return (match for match in matches if address in (None, match.key.primary_channel))


def _has_prefix(conversation: "Conversation", name: str) -> bool:
    """Return whether the id begins with `name`, as stored or as lists show it redacted."""
    known = conversation.key.conversation_id
    return bool(name) and (known.startswith(name) or redact_id(known).startswith(name))
