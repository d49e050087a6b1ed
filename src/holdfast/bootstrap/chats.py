"""Conversations put together: settings, store, queues, providers, and what uses them."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl

from holdfast.adapters.chat.vendor_logs import silence_vendor_logs
from holdfast.bootstrap.chat_providers import ChatProviders
from holdfast.bootstrap.queues import open_queue
from holdfast.config.chat import ChatSettings, chat_settings, chat_variable
from holdfast.config.settings import SqsSettings, queue_settings
from holdfast.conversations.messages import Inbound, Trigger
from holdfast.conversations.model import Channel
from holdfast.conversations.policy import ConversationProfile
from holdfast.conversations.ports import ConversationStore
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError
from holdfast.core.events import Events
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.queue.manager import QueueManager

if TYPE_CHECKING:
    from holdfast.adapters.chat.outbox import OutboxReply
    from holdfast.conversations.operator import Operator
    from holdfast.conversations.processor import BatchProcessor
    from holdfast.conversations.staging import Stager
    from holdfast.conversations.sweeper import Sweeper


def open_conversations(
    url: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK
) -> ConversationStore:
    """The store of conversations behind a URL.

    chat.db, sqlite:/srv/chat.db     a file, made when it is not there
    dynamodb:                        the tables of their plain names
    dynamodb:acme-                   the tables acme-…
    """
    text = os.fspath(url)
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "dynamodb":
        from holdfast.adapters.aws.dynamodb.chat import DynamoDBConversations

        return DynamoDBConversations(rest, clock=clock)
    if colon and scheme not in ("sqlite", "file") and scheme.isalnum() and len(scheme) > 1:
        raise ConfigError(
            f"no conversations in {scheme}: URLs; use a path, sqlite: or dynamodb:"
        )
    from holdfast.adapters.local.sqlite import SQLiteConversations

    path = rest if colon and scheme in ("sqlite", "file") else text
    return SQLiteConversations(Path(path), clock=clock, durability="power")


def file_of(url: str) -> Path | None:
    """The file of a store; None where it is no file."""
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "dynamodb":
        return None
    return Path(rest if colon and scheme in ("sqlite", "file") else url)


def sent_to(folder: Path) -> "list[OutboxReply]":
    """What was laid down in an outbox, the oldest first."""
    from holdfast.adapters.chat.outbox import letters

    return letters(folder)


def trigger_settings(settings: ChatSettings, env: Mapping[str, str]) -> list[SqsSettings]:
    """Of the queues for triggers, without opening one. Raises ConfigError with what is
    wrong in the URL of each."""
    found, problems = [], []
    for channel, url in settings.queue_urls.items():
        asked = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
        try:
            found.append(queue_settings(env, asked, {}, SqsSettings))
        except ConfigError as error:
            problems.append(f"{chat_variable(f'{channel}_queue')}: {error}")
    if problems:
        raise ConfigError("; ".join(problems))
    return found


class ChatQueues(Mapping[Channel, QueueManager[Trigger]]):
    """The queues for triggers by channel, and the one for inbound messages. Each is opened
    when somebody needs it: a listing must not ask SQS. Safe for threads."""

    def __init__(
        self, settings: ChatSettings, env: Mapping[str, str], clock: Clock, events: Events
    ) -> None:
        self._settings = settings
        self._open = partial(open_queue, env=env, clock=clock, events=events)
        self._opening = Lock()
        self._opened: dict[str, QueueManager[Any]] = {}

    def __getitem__(self, channel: Channel) -> QueueManager[Trigger]:
        return self._one(self._settings.queue_urls[channel], Trigger)

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._settings.queue_urls)

    def __len__(self) -> int:
        return len(self._settings.queue_urls)

    def inbound(self) -> QueueManager[Inbound]:
        """Raises ConfigError where none is set."""
        if (url := self._settings.inbound_queue) is None:
            raise ConfigError(
                f"there is no queue for inbound messages: set {chat_variable('inbound_queue')}"
            )
        return self._one(url, Inbound)

    def close(self) -> None:
        with self._opening:
            while self._opened:
                self._opened.popitem()[1].close()

    def _one(self, url: str, model: type[Any]) -> QueueManager[Any]:
        with self._opening:
            if url not in self._opened:
                self._opened[url] = self._open(url, model)
            return self._opened[url]


@dataclass(frozen=True, slots=True)
class ChatApp:
    """All that conversations need, wired. `processor` handles triggers, `stager` inbound
    messages; a keeper of its own runs from the first trigger until `close`."""

    settings: ChatSettings
    store: ConversationStore
    queues: ChatQueues
    providers: ChatProviders
    keeper: LeaseKeeper
    stager: "Stager"
    processor: "BatchProcessor"
    sweeper: "Sweeper"
    desk: "Operator"
    own_keeper: bool = True

    def close(self) -> None:
        """Let go of everything; to be called when nothing is handled any more."""
        if self.own_keeper:
            self.keeper.stop()
        self.queues.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def build_chat(
    env: Mapping[str, str] | None = None,
    *,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    keeper: LeaseKeeper | None = None,
    fallback: ConversationProfile | None = None,
) -> ChatApp:
    """From the environment. Opens the store, no queue and no provider. `fallback`: what a
    new conversation begins with when no profile fits.

    Raises ConfigError with every problem of the settings, StoreUnavailable.
    """
    env = os.environ if env is None else env
    settings = chat_settings(env)
    silence_vendor_logs("botocore")  # at DEBUG it logs each call: numbers and texts
    attempts = min(one.max_attempts for one in trigger_settings(settings, env))
    events = events or Events()
    store = open_conversations(settings.store_url, clock=clock)
    return _wired(settings, store, env, clock, events, keeper, fallback, attempts)


def _wired(
    settings: ChatSettings,
    store: ConversationStore,
    env: Mapping[str, str],
    clock: Clock,
    events: Events,
    keeper: LeaseKeeper | None,
    fallback: ConversationProfile | None,
    attempts: int,
) -> ChatApp:
    from holdfast.conversations.operator import Operator
    from holdfast.conversations.processor import BatchProcessor
    from holdfast.conversations.staging import Stager
    from holdfast.conversations.sweeper import Sweeper

    queues = ChatQueues(settings, env, clock, events)
    providers = ChatProviders(settings, env, clock)
    profiles = ({"*": fallback} if fallback else {}) | dict(settings.profiles)
    kept = keeper or LeaseKeeper(clock, events)
    told: dict[str, Any] = {"terms": settings.terms, "clock": clock, "events": events}
    processor = BatchProcessor(
        store, providers, queues, keeper=kept, max_attempts=attempts, **told
    )
    return ChatApp(
        settings,
        store,
        queues,
        providers,
        kept,
        stager=Stager(store, queues, profiles=profiles, **told),
        processor=processor,
        sweeper=Sweeper(store, queues, **told),
        desk=Operator(store, queues, **told),
        own_keeper=keeper is None,
    )
