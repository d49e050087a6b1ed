"""Build the conversation application from settings, store, queues and providers."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from holdfast.chat.errors import PermanentError
from holdfast.chat.messages import Inbound, Trigger
from holdfast.chat.model import Channel, ConversationProfile
from holdfast.chat.ports import ConversationStore
from holdfast.chat.providers import silence_vendor_logs
from holdfast.chat.settings import ChatSettings, read_trigger_settings
from holdfast.errors import ConfigError
from holdfast.events import Events
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.keeper import LeaseKeeper
from holdfast.queue.manager import QueueManager
from holdfast.queues.opening import open_queue
from holdfast.settings import read_settings
from holdfast.urls import STORES, parse_url

if TYPE_CHECKING:
    from holdfast.chat.operator import Operator
    from holdfast.chat.ports import ReplySender, ReplyWriter, SecretStore
    from holdfast.chat.processor import BatchProcessor
    from holdfast.chat.providers.local import OutboxReply
    from holdfast.chat.staging import Stager, Sweeper

# For local use: it needs no account, costs nothing, and sends nothing outside the machine.
LOCAL_PROFILE = ConversationProfile(
    channel_config={"provider": "outbox"}, ai_config={"provider": "echo"}
)


def open_conversations(
    url: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK
) -> ConversationStore:
    """Open the store of conversations behind a URL.

    chat.db, sqlite:/srv/chat.db     a file, created if it does not exist
    dynamodb:                        the tables without a prefix
    dynamodb:acme-                   the tables acme-…
    """
    store = parse_url(os.fspath(url), STORES)
    if store.scheme == "dynamodb":
        from holdfast.chat.dynamodb import DynamoDBConversations

        return DynamoDBConversations(store.path, clock=clock)
    from holdfast.chat.sqlite_conversations import SQLiteConversations

    return SQLiteConversations(Path(store.path), clock=clock, durability="power")


def create_chat_tables(url: str) -> list[str]:
    """Create the missing tables of a dynamodb: store and return their names.

    Raises ConfigError and StoreUnavailable.
    """
    from holdfast.aws.clients import make_retrying_client
    from holdfast.chat.dynamodb.tables import create_tables

    return create_tables(make_retrying_client("dynamodb"), parse_url(url, STORES).path)


def read_outbox(folder: Path) -> "list[OutboxReply]":
    """Return the replies in an outbox folder, oldest first."""
    from holdfast.chat.providers import local

    return local.read_outbox(folder)


class ChatQueues(Mapping[Channel, QueueManager[Trigger]]):
    """The trigger queues by channel, and the queue of inbound messages.

    Each is opened on first use, because a command that only lists conversations must not
    call SQS. Safe for threads.
    """

    def __init__(
        self, settings: ChatSettings, env: Mapping[str, str], clock: Clock, events: Events
    ) -> None:
        self._settings = settings
        self._open = partial(open_queue, env=env, clock=clock, events=events)
        self._opening = Lock()
        self._opened: dict[str, QueueManager[Any]] = {}

    def __getitem__(self, channel: Channel) -> QueueManager[Trigger]:
        return self._open_once(self._settings.queue_urls[channel], Trigger)

    def __iter__(self) -> Iterator[Channel]:
        return iter(self._settings.queue_urls)

    def __len__(self) -> int:
        return len(self._settings.queue_urls)

    def inbound(self) -> QueueManager[Inbound]:
        """Return the queue of inbound messages. Raises ConfigError if none is set."""
        if (url := self._settings.inbound_queue) is None:
            variable = self._settings.to_variable("inbound_queue")
            raise ConfigError(f"no queue for inbound messages is set; set {variable}")
        return self._open_once(url, Inbound)

    def close(self) -> None:
        """Close every queue that was opened."""
        with self._opening:
            while self._opened:
                self._opened.popitem()[1].close()

    def _open_once(self, url: str, model: type[Any]) -> QueueManager[Any]:
        with self._opening:
            if url not in self._opened:
                self._opened[url] = self._open(url, model)
            return self._opened[url]


class ChatProviders:
    """The providers by name, each imported when it is used first. Safe for threads."""

    def __init__(self, settings: ChatSettings, env: Mapping[str, str], clock: Clock) -> None:
        self._settings, self._env, self._clock = settings, env, clock

    @cached_property
    def secrets(self) -> "SecretStore":
        """The store of secrets, with its cache."""
        from holdfast.chat.providers.secrets import SecretResolver

        seconds = self._settings.secrets_cache_seconds
        return SecretResolver(self._env, cache_seconds=seconds, clock=self._clock)

    def writer(self, name: str) -> "ReplyWriter":
        """Return the writer of that name. Raises PermanentError if the name is unknown."""
        match name:
            case "openai":
                from holdfast.chat.providers.openai import OpenAIWriter

                return OpenAIWriter()
            case "echo":
                from holdfast.chat.providers.local import EchoWriter

                return EchoWriter()
        raise PermanentError("the provider of the writer must be one of openai, echo")

    def sender(self, name: str) -> "ReplySender":
        """Return the sender of that name. Raises as `writer` does."""
        match name:
            case "twilio":
                from holdfast.chat.providers.twilio import TwilioSender

                return TwilioSender()
            case "smtp":
                from holdfast.chat.providers.smtp import SmtpSender

                return SmtpSender(self._clock)
            case "outbox":
                from holdfast.chat.providers.local import OutboxSender

                return OutboxSender(self._settings.outbox_folder, self._clock)
        raise PermanentError("the provider of the sender must be one of twilio, smtp, outbox")


@dataclass(frozen=True, slots=True)
class ChatApp:
    """The wired conversation application.

    `processor` handles triggers and `stager` handles inbound messages. With `own_keeper`,
    the keeper runs from the first trigger until `close`.
    """

    settings: ChatSettings
    store: ConversationStore
    queues: ChatQueues
    providers: ChatProviders
    keeper: LeaseKeeper
    stager: "Stager"
    processor: "BatchProcessor"
    sweeper: "Sweeper"
    operator: "Operator"
    own_keeper: bool = True

    def close(self) -> None:
        """Close everything. Call it only when no message is being handled."""
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
    """Build the application from the environment.

    It opens the store, but no queue and no provider. `fallback` is the profile of a new
    conversation that no configured profile fits. Raises ConfigError with every problem of
    the settings, and StoreUnavailable.
    """
    from holdfast.chat.operator import Operator
    from holdfast.chat.processor import BatchProcessor
    from holdfast.chat.staging import Stager, Sweeper

    env = os.environ if env is None else env
    settings = read_settings(ChatSettings, env)
    silence_vendor_logs("botocore")  # at DEBUG it logs each call with phone numbers and texts
    attempts = min(queue.max_attempts for queue in read_trigger_settings(settings, env))
    events = events or Events()
    store = open_conversations(settings.store_url, clock=clock)
    queues = ChatQueues(settings, env, clock, events)
    providers = ChatProviders(settings, env, clock)
    profiles = ({"*": fallback} if fallback else {}) | dict(settings.profiles)
    used_keeper = keeper or LeaseKeeper(clock, events)
    shared: dict[str, Any] = {"policy": settings.policy, "clock": clock, "events": events}
    return ChatApp(
        settings,
        store,
        queues,
        providers,
        used_keeper,
        stager=Stager(store, queues, profiles=profiles, **shared),
        processor=BatchProcessor(
            store, providers, queues, keeper=used_keeper, max_attempts=attempts, **shared
        ),
        sweeper=Sweeper(store, queues, **shared),
        operator=Operator(store, queues, **shared),
        own_keeper=keeper is None,
    )
