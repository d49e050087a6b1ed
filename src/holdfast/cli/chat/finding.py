"""The conversation that a person means, in a store that is there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.chat.formatting import masked
from holdfast.cli.errors import NotFound, UsageError
from holdfast.conversations.model import redacted_id
from holdfast.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.config.chat import ChatSettings
    from holdfast.conversations.model import Conversation
    from holdfast.conversations.ports import ConversationStore

Named = Annotated[
    str,
    typer.Argument(metavar="CONVERSATION", help="Its id, or enough of the beginning."),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="ADDRESS", help="The customer's, where several have the same id."
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Show numbers and addresses as they are.")]


@contextmanager
def chat() -> "Iterator[ChatApp]":
    """All of it, for a store that is there: looking for something makes none."""
    from holdfast.bootstrap.chats import build_chat

    must_be_there()
    with build_chat(os.environ) as app:
        yield app


@contextmanager
def store() -> "Iterator[ConversationStore]":
    """The store alone, for looking."""
    from holdfast.bootstrap.chats import open_conversations

    with open_conversations(must_be_there().store_url) as opened:
        yield opened


def must_be_there() -> "ChatSettings":
    """Raises ConfigError with all that is wrong, StoreUnavailable when there is no store."""
    from holdfast.bootstrap.chats import file_of
    from holdfast.config.chat import chat_settings

    settings = chat_settings(os.environ)
    file = file_of(settings.store_url)
    if file is not None and not file.exists():
        raise StoreUnavailable(
            f"there are no conversations in {str(file)!r} yet: `holdfast chat send` begins "
            "one; HOLDFAST_CHAT_STORE names another place"
        )
    return settings


def the_one(store: "ConversationStore", name: str, address: str | None) -> "Conversation":
    """Raises NotFound; UsageError when it could be several."""
    found = list(_those(store, name, address))
    if not found:
        raise NotFound(
            f"there is no conversation {name!r}: `holdfast chat show` lists those there are"
        )
    if len(found) > 1:
        seen = ", ".join(sorted({masked(one.key.primary_channel) for one in found}))
        raise UsageError(f"{name!r} may be several ({seen}): write more of the id, or --from")
    return found[0]


def _those(
    store: "ConversationStore", name: str, address: str | None
) -> "Iterator[Conversation]":
    exact = list(store.conversations(name))
    rest = exact or islice((one for one in store.conversations() if _is(one, name)), 2)
    return (one for one in rest if address in (None, one.key.primary_channel))


def _is(conversation: "Conversation", name: str) -> bool:
    """By the beginning of its id, or by how lists show an id that looks like a number."""
    known = conversation.key.conversation_id
    return bool(name) and (known.startswith(name) or redacted_id(known).startswith(name))
