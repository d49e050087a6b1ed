"""The messages of the queues: inbound messages to staging, triggers to the processor."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, ValidationError

from holdfast.chat.errors import InvalidInbound
from holdfast.chat.model import ConversationKey, digest_texts
from holdfast.queue.message import QueueMessage

MAX_BODY = 64_000  # characters of one fragment
_MAX_NAME = 256
_MAX_MEDIA, _MAX_KIND = 100, 100

_MILLISECONDS_FROM = 100_000_000_000  # as seconds this would be the year 5138
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


def parse_time(value: object) -> float:
    """Return seconds since the epoch for a time in any form that other systems write.

    The forms are ISO 8601 (UTC if it has no offset), RFC 2822, seconds and milliseconds. Two
    times compare as they happened, whatever their forms. Raises ValueError.
    """
    try:
        return _check_range(_to_seconds(value))
    except OverflowError:  # a year or a number of hundreds of digits
        raise ValueError("not a time between 1970 and 5138") from None


def _to_seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value / 1000 if abs(value) >= _MILLISECONDS_FROM else value
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return _to_seconds(float(value))
    moment = _parse_text(value.strip()) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise ValueError("not a time")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _parse_text(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        raise ValueError("not a time") from None


def _check_range(seconds: float) -> float:
    if not 0 < seconds < _MILLISECONDS_FROM:  # also refuses NaN
        raise ValueError("not a time between 1970 and 5138")
    return float(seconds)


def _check_name(value: object) -> str:
    """Return an id or an address, which must be one line of text.

    A hostile value is refused, not repaired.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError("is missing")
    if len(value) > _MAX_NAME:
        raise ValueError(f"has more than {_MAX_NAME} characters")
    if not value.isprintable():
        raise ValueError("has a control character")
    return value


Name = Annotated[str, BeforeValidator(_check_name)]


class Trigger(QueueMessage):
    """The request to answer what is staged for one conversation.

    `window_id` is the window that this trigger ends. It is the trigger's own id unless the
    trigger replaces an earlier one. `waited_seconds` is by how much that window was
    prolonged. An unknown field is ignored, because workers of two releases share the queue
    while the newer one is rolled out.
    """

    model_config = ConfigDict(extra="ignore")

    conversation_id: Name
    primary_channel: Name = Field(repr=False)
    window_id: Annotated[str, BeforeValidator(lambda v: v and _check_name(v))] = ""
    waited_seconds: float = 0.0

    @property
    def key(self) -> ConversationKey:
        """Return the key of the conversation to answer."""
        return ConversationKey(self.primary_channel, self.conversation_id)

    @property
    def window(self) -> str:
        """Return the id of the window that this trigger ends."""
        return self.window_id or self.id


class Inbound(QueueMessage):
    """One message of a customer, as staging accepts it.

    An unknown field is ignored, because the systems that send it add fields of their own.
    """

    model_config = ConfigDict(extra="ignore", populate_by_name=True, hide_input_in_errors=True)

    message_sid: Name
    primary_channel: Name = Field(
        repr=False, validation_alias=AliasChoices("primary_channel", "from", "From")
    )
    recipient: str = Field(
        default="", repr=False, validation_alias=AliasChoices("recipient", "to", "To")
    )
    conversation_id: str = ""
    body: str = Field(default="", repr=False)
    received_at: Annotated[float | None, BeforeValidator(lambda v: v and parse_time(v))] = None
    media: tuple[str, ...] = ()

    @property
    def key(self) -> ConversationKey:
        """Return the key of the conversation.

        A message without a conversation id belongs to the conversation between its two
        addresses.
        """
        conversation_id = self.conversation_id or digest_texts(
            self.recipient, self.primary_channel
        )
        return ConversationKey(self.primary_channel, conversation_id)


def parse_inbound(data: Mapping[str, Any]) -> Inbound:
    """Return a validated inbound message.

    Raises InvalidInbound, which names the wrong fields but not their values.
    """
    try:
        return check_inbound(Inbound.model_validate(dict(data)))
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        texts = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in problems]
        raise InvalidInbound("; ".join(texts).replace("Value error, ", "")) from None


def check_inbound(inbound: Inbound) -> Inbound:
    """Return the message if it can be answered and stored; else raise InvalidInbound."""
    if not inbound.body.strip() and not inbound.media:
        raise InvalidInbound("the message is empty: no text, nothing attached")
    if len(inbound.body) > MAX_BODY:
        raise InvalidInbound(f"the text has more than {MAX_BODY:,} characters")
    for name in ("conversation_id", "recipient"):
        if (value := getattr(inbound, name)) and (len(value) > 256 or not value.isprintable()):
            raise InvalidInbound(f"{name} is too long or has a control character")
    if len(inbound.media) > _MAX_MEDIA:
        raise InvalidInbound(f"more than {_MAX_MEDIA} files are attached")
    if any(len(kind) > _MAX_KIND or not kind.isprintable() for kind in inbound.media):
        raise InvalidInbound("a media type is too long or has a control character")
    try:
        inbound.body.encode()
    except UnicodeEncodeError:
        raise InvalidInbound("the text is not valid Unicode") from None
    return inbound
