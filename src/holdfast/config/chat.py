"""Settings of conversations: from the environment, checked whole and early."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from holdfast.conversations.model import Channel
from holdfast.conversations.policy import ConversationPolicy, ConversationProfile, Doubt
from holdfast.core.errors import ConfigError

_PARTS = ("channel_config", "ai_config")


def _standard(url: str) -> str:
    """A queue for triggers: each comes after a delay of its own, which FIFO queues of SQS
    do not know (MS-29)."""
    if url.partition("?")[0].lower().endswith(".fifo"):
        raise ValueError("a FIFO queue delays no single message: use a standard queue")
    return url


def _kept_where(url: str) -> str:
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "dynamodb":
        if not re.fullmatch(r"[A-Za-z0-9_.-]{0,200}", rest):
            raise ValueError("a prefix of tables has letters, digits, '.', '_' and '-' only")
    elif colon and scheme not in ("sqlite", "file") and scheme.isalnum() and len(scheme) > 1:
        raise ValueError("use a path, sqlite:PATH or dynamodb:PREFIX")
    return url


def _web_address(url: str) -> str:
    if not re.match(r"https?://[^\s/]+", url):
        raise ValueError("a URL is needed as Twilio knows it, with https://")
    return url


def _read_profiles(given: object) -> object:
    """JSON, or the path of a file with it: {"ADDRESS": {"channel_config": …, "ai_config": …}}.
    Raises ValueError; no address is named, for it is somebody's."""
    if not isinstance(given, str):
        return given
    text = given if given.lstrip()[:1] in ("{", "[") else _file_text(given)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise ValueError(
            f"line {line}: not JSON: {getattr(error, 'msg', 'too deep')}"
        ) from None
    if not isinstance(found, dict):
        raise ValueError("a JSON object is needed: profiles by the address written to")
    return tuple(_profile(n, *named) for n, named in enumerate(found.items(), 1))


def _file_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ValueError(f"neither JSON nor a file that can be read: {why}") from None


def _profile(number: int, address: str, value: object) -> tuple[str, ConversationProfile]:
    if not address.strip():
        raise ValueError(f"profile {number}: the address is empty; '*' stands for any")
    if not isinstance(value, dict) or not set(value) <= set(_PARTS):
        raise ValueError(f"profile {number}: an object with channel_config and ai_config")
    if not all(isinstance(part, dict) for part in value.values()):
        raise ValueError(f"profile {number}: channel_config and ai_config are objects")
    return address, ConversationProfile(**value)


TriggerQueue = Annotated[str, Field(min_length=1), AfterValidator(_standard)]
StoreUrl = Annotated[str, Field(min_length=1), AfterValidator(_kept_where)]
Profiles = Annotated[
    tuple[tuple[str, ConversationProfile], ...], BeforeValidator(_read_profiles)
]
_TERMS = ConversationPolicy()


class ChatSettings(BaseModel):
    """How conversations are held. Each is also HOLDFAST_CHAT_<NAME>; `data_dir` is
    HOLDFAST_DATA_DIR. From `window_seconds` on they are those of `ConversationPolicy`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    data_dir: str = Field(default="data", min_length=1)
    store: StoreUrl | None = None
    whatsapp_queue: TriggerQueue = "chat/whatsapp"
    sms_queue: TriggerQueue = "chat/sms"
    email_queue: TriggerQueue = "chat/email"
    inbound_queue: str | None = Field(default=None, min_length=1)
    outbox: str | None = Field(default=None, min_length=1)
    profiles: Profiles = Field(default=(), repr=False)
    twilio_secret: str | None = Field(default=None, min_length=1, repr=False)
    webhook_url: Annotated[str, AfterValidator(_web_address)] | None = None
    secrets_cache_seconds: float = Field(default=300.0, ge=0)
    window_seconds: float = _TERMS.window_seconds
    quiet_seconds: float = _TERMS.quiet_seconds
    max_wait_seconds: float = _TERMS.max_wait_seconds
    lock_seconds: float = _TERMS.lock_seconds
    in_doubt: Doubt = _TERMS.in_doubt
    writer_seconds: float = _TERMS.writer_seconds
    sender_seconds: float = _TERMS.sender_seconds
    stage_seconds: float = _TERMS.stage_seconds
    remember_seconds: float = _TERMS.remember_seconds
    grace_seconds: float = _TERMS.grace_seconds
    park_after_seconds: float = _TERMS.park_after_seconds
    most_fragments: int = _TERMS.most_fragments

    @property
    def store_url(self) -> str:
        return self.store or str(Path(self.data_dir, "chat.db"))

    @property
    def outbox_folder(self) -> Path:
        return Path(self.outbox or Path(self.data_dir, "outbox"))

    @property
    def queue_urls(self) -> dict[Channel, str]:
        return {
            Channel.WHATSAPP: self.whatsapp_queue,
            Channel.SMS: self.sms_queue,
            Channel.EMAIL: self.email_queue,
        }

    @property
    def terms(self) -> ConversationPolicy:
        """Raises ConfigError for waits and limits that contradict each other."""
        return ConversationPolicy(
            **{one.name: getattr(self, one.name) for one in fields(ConversationPolicy)}
        )

    def contradictions(self) -> Iterator[str]:
        """What is right each by itself, and wrong together."""
        try:
            self.terms  # noqa: B018  # it is made to be checked
        except ConfigError as error:
            yield from map(_by_variable, str(error).split("; "))
        for channel, url in self.queue_urls.items():
            if url == self.inbound_queue:
                taken = chat_variable(f"{channel}_queue")
                yield f"{chat_variable('inbound_queue')} is {taken}, too: give it its own"


def chat_variable(name: str) -> str:
    return "HOLDFAST_DATA_DIR" if name == "data_dir" else f"HOLDFAST_CHAT_{name.upper()}"


def chat_settings(env: Mapping[str, str]) -> ChatSettings:
    """From the environment. Raises ConfigError with every problem, by its variable. What
    was written is not repeated: addresses and secrets may be in there."""
    said: dict[str, Any] = {
        name: env[variable]
        for name in ChatSettings.model_fields
        if (variable := chat_variable(name)) in env
    }
    problems = _problems(said)
    sound = ChatSettings(**{name: said[name] for name in said if name not in problems})
    bad = [chat_variable(name) for name in problems]
    # Beside a default in the place of something bad, what is right may look wrong.
    more = [one for one in sound.contradictions() if not any(name in one for name in bad)]
    if problems or more:
        raise ConfigError("; ".join([*problems.values(), *more]))
    return sound


def _problems(said: Mapping[str, Any]) -> dict[str, str]:
    """By the setting's name."""
    try:
        ChatSettings(**said)
    except ValidationError as error:
        told = error.errors(include_url=False, include_context=False, include_input=False)
        return {
            (name := str(one["loc"][0])): (
                f"{chat_variable(name)}: {one['msg'].removeprefix('Value error, ')}"
            )
            for one in told
        }
    return {}


def _by_variable(problem: str) -> str:
    """A complaint of `ConversationPolicy`, with the names that the person wrote."""
    names = "|".join(one.name for one in fields(ConversationPolicy))
    return re.sub(rf"\b({names})\b", lambda name: chat_variable(name[0]), problem)
