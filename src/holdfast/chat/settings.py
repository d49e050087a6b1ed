"""Settings of conversations, from the environment."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from holdfast.chat.model import Channel, ConversationPolicy, ConversationProfile, Doubt
from holdfast.errors import ConfigError
from holdfast.queues.settings import SqsSettings
from holdfast.settings import Settings, read_settings
from holdfast.urls import QUEUES, STORES, Url, UrlKind, parse_url

_PROFILE_PARTS = ("channel_config", "ai_config")

PROBE_URL = "https://holdfast.invalid/doctor"
"""The URL that doctor signs instead of the webhook's, to learn whether the token is right."""


def _parse_url(url: str, kind: UrlKind) -> Url:
    """Parse a URL. Raises ValueError, which pydantic reports with the other problems."""
    try:
        return parse_url(url, kind)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _check_queue_url(url: str) -> str:
    _parse_url(url, QUEUES)
    return url


def _check_trigger_queue(url: str) -> str:
    """Refuse a FIFO queue, because each trigger has its own delay and SQS delays only whole
    FIFO queues."""
    if _parse_url(url, QUEUES).path.lower().endswith(".fifo"):
        raise ValueError("a FIFO queue cannot delay a single message; use a standard queue")
    return url


def _check_store_url(url: str) -> str:
    store = _parse_url(url, STORES)
    if store.scheme == "dynamodb" and not re.fullmatch(r"[A-Za-z0-9_.-]{0,200}", store.path):
        raise ValueError("a prefix of tables has letters, digits, '.', '_' and '-' only")
    return url


def _check_web_address(url: str) -> str:
    if not re.match(r"https?://[^\s/]+", url):
        raise ValueError("use the URL that Twilio calls, with https://")
    return url


def _read_profiles(given: object) -> object:
    """Read profiles from JSON, or from the path of a JSON file.

    The JSON is {"ADDRESS": {"channel_config": …, "ai_config": …}}. Raises ValueError, which
    names no address, because addresses are personal data.
    """
    if not isinstance(given, str):
        return given
    text = given if given.lstrip()[:1] in ("{", "[") else _read_file(given)
    try:
        profiles = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise ValueError(
            f"line {line}: not JSON: {getattr(error, 'msg', 'too deep')}"
        ) from None
    if not isinstance(profiles, dict):
        raise ValueError("a JSON object is needed, with a profile for each address written to")
    return tuple(_read_profile(n, *item) for n, item in enumerate(profiles.items(), 1))


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"neither JSON nor a file that can be read: {reason}") from None


def _read_profile(number: int, address: str, value: object) -> tuple[str, ConversationProfile]:
    if not address.strip():
        raise ValueError(f"profile {number}: the address is empty; use '*' for any address")
    if not isinstance(value, dict) or not set(value) <= set(_PROFILE_PARTS):
        raise ValueError(
            f"profile {number}: an object with channel_config and ai_config is needed"
        )
    if not all(isinstance(part, dict) for part in value.values()):
        raise ValueError(f"profile {number}: channel_config and ai_config must be objects")
    return address, ConversationProfile(**value)


QueueUrl = Annotated[str, Field(min_length=1), AfterValidator(_check_queue_url)]
TriggerQueue = Annotated[str, Field(min_length=1), AfterValidator(_check_trigger_queue)]
StoreUrl = Annotated[str, Field(min_length=1), AfterValidator(_check_store_url)]
Profiles = Annotated[
    tuple[tuple[str, ConversationProfile], ...], BeforeValidator(_read_profiles)
]
_DEFAULTS = ConversationPolicy()


class ChatSettings(Settings):
    """The settings of conversations. Each is also HOLDFAST_CHAT_<NAME>, except `data_dir`,
    which is HOLDFAST_DATA_DIR. From `window_seconds` on they are those of
    `ConversationPolicy`."""

    model_config = ConfigDict(allow_inf_nan=False)
    env_prefix = "HOLDFAST_CHAT_"
    variables: ClassVar = {"data_dir": "HOLDFAST_DATA_DIR"}
    shows_values = False  # they may hold addresses and secrets

    #: the folder of the store, the outbox and of queues with short names
    data_dir: str = Field(default="data", min_length=1)
    #: the conversation store: a file, `sqlite:PATH`, `dynamodb:` or `dynamodb:PREFIX`; without
    #: it `chat.db` below `data_dir`
    store: StoreUrl | None = None
    #: the queue for triggers of WhatsApp; any queue except a FIFO queue, which cannot delay a
    #: single message
    whatsapp_queue: TriggerQueue = "chat/whatsapp"
    #: the same for SMS
    sms_queue: TriggerQueue = "chat/sms"
    #: the same for e-mail
    email_queue: TriggerQueue = "chat/email"
    #: a queue of inbound messages; `holdfast chat work` stages them
    inbound_queue: QueueUrl | None = None
    #: the folder of the sender `outbox`; without it `outbox` below `data_dir`
    outbox: str | None = Field(default=None, min_length=1)
    #: the configuration of new conversations, by the address the customer wrote to, `*` for
    #: any: JSON, or the path of a JSON file ([an example](../../examples/chat/profiles.json))
    profiles: Profiles = Field(default=(), repr=False)
    #: the secret whose `auth_token` signs Twilio's webhooks: `env:NAME`, `file:PATH`, or a name
    #: in Secrets Manager
    twilio_secret: str | None = Field(default=None, min_length=1, repr=False)
    #: the webhook's URL as entered at Twilio, which signs it
    webhook_url: Annotated[str, AfterValidator(_check_web_address)] | None = None
    #: seconds that a secret of Secrets Manager is cached
    secrets_cache_seconds: float = Field(default=300.0, ge=0)
    #: seconds that the first message of a batch waits for others; at most 900
    window_seconds: float = _DEFAULTS.window_seconds
    #: if the customer wrote less than this many seconds ago, the window waits longer …
    quiet_seconds: float = _DEFAULTS.quiet_seconds
    #: … but at most this many seconds after the first message
    max_wait_seconds: float = _DEFAULTS.max_wait_seconds
    #: seconds that a conversation's lock lasts unless it is renewed; after a crash another
    #: process can continue after this time. Keep it near the lease of the queues
    lock_seconds: float = _DEFAULTS.lock_seconds
    #: what to do if it is unknown whether a reply was sent. `if_missing`: send it again if the
    #: call is over and the provider reports 30 seconds later that it does not have it, and park
    #: it for an operator otherwise. `at_most_once`: park it unless the provider has it.
    #: `at_least_once`: send it again unless the provider has it ([ADR
    #: 12](../adr/0012-unknown-sends-are-parked.md))
    in_doubt: Doubt = _DEFAULTS.in_doubt
    #: maximum seconds for a call to the writer; look-ups of an unclear send take at most half
    #: of this
    writer_seconds: float = _DEFAULTS.writer_seconds
    #: maximum seconds for a call to the sender
    sender_seconds: float = _DEFAULTS.sender_seconds
    #: seconds that staged messages are kept; at least 14 days, because a queue keeps their
    #: trigger that long
    stage_seconds: float = _DEFAULTS.stage_seconds
    #: seconds that an answered message is remembered, so that a duplicate is recognised
    remember_seconds: float = _DEFAULTS.remember_seconds
    #: seconds after its due time at which a trigger counts as lost; also how often `chat work`
    #: sweeps
    grace_seconds: float = _DEFAULTS.grace_seconds
    #: seconds after which a message that could not be answered is parked
    park_after_seconds: float = _DEFAULTS.park_after_seconds
    #: maximum messages in one batch; further messages are answered in the next turns
    most_fragments: int = _DEFAULTS.most_fragments

    @property
    def store_url(self) -> str:
        """Return the store's URL; without a setting it is a file in the data folder."""
        return self.store or str(Path(self.data_dir, "chat.db"))

    @property
    def outbox_folder(self) -> Path:
        """Return the folder that the local outbox writes to."""
        return Path(self.outbox or Path(self.data_dir, "outbox"))

    @property
    def queue_urls(self) -> dict[Channel, str]:
        """Return the URL of each channel's trigger queue."""
        return {
            Channel.WHATSAPP: self.whatsapp_queue,
            Channel.SMS: self.sms_queue,
            Channel.EMAIL: self.email_queue,
        }

    @property
    def policy(self) -> ConversationPolicy:
        """Return the policy. Raises ConfigError if waits or limits contradict each other."""
        return ConversationPolicy(
            **{field.name: getattr(self, field.name) for field in fields(ConversationPolicy)}
        )

    def find_contradictions(self) -> Iterator[str]:
        """Yield the problems of settings that are valid alone but not together."""
        try:
            self.policy  # noqa: B018  # building it checks it
        except ConfigError as error:
            yield from map(_name_variables, str(error).split("; "))
        for channel, url in self.queue_urls.items():
            if url == self.inbound_queue:
                other = self.to_variable(f"{channel}_queue")
                yield (
                    f"{self.to_variable('inbound_queue')} is the same queue as {other}; "
                    "use a separate queue"
                )


def read_trigger_settings(settings: ChatSettings, env: Mapping[str, str]) -> list[SqsSettings]:
    """Return the settings of the trigger queues without opening them.

    Raises ConfigError with the problems in each queue's URL.
    """
    read: list[SqsSettings] = []
    problems = []
    for channel, url in settings.queue_urls.items():
        try:
            read.append(read_settings(SqsSettings, env, parse_url(url, QUEUES).options))
        except ConfigError as error:
            problems.append(f"{settings.to_variable(f'{channel}_queue')}: {error}")
    if problems:
        raise ConfigError("; ".join(problems))
    return read


def _name_variables(problem: str) -> str:
    """Replace the field names in a problem of `ConversationPolicy` by the variables."""
    names = "|".join(field.name for field in fields(ConversationPolicy))
    return re.sub(rf"\b({names})\b", lambda name: ChatSettings.to_variable(name[0]), problem)
