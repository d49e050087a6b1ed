"""What travels through queues: inbound messages to staging, triggers to the processor."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field, ValidationError

from holdfast.conversations.errors import InvalidInbound
from holdfast.conversations.model import ConversationKey, mark_of
from holdfast.core.queue.message import QueueMessage

MAX_BODY = 64_000  # characters of one fragment
_MAX_NAME = 256
_MOST_MEDIA, _MAX_KIND = 100, 100

_MILLISECONDS_FROM = 100_000_000_000  # as seconds this would be the year 5138
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


def instant(value: object) -> float:
    """Seconds since the epoch, of any form in which clocks of others write a moment: ISO
    with or without offset (UTC then), RFC 2822, seconds, milliseconds.

    Raises ValueError. Two moments compare as they happened, whatever form they came in.
    """
    try:
        return _checked(_seconds(value))
    except OverflowError:  # a year or a number of hundreds of digits
        raise ValueError("not a time between 1970 and 5138") from None


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value / 1000 if abs(value) >= _MILLISECONDS_FROM else value
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return _seconds(float(value))
    moment = _parsed(value.strip()) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        raise ValueError("not a time")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        raise ValueError("not a time") from None


def _checked(seconds: float) -> float:
    if not 0 < seconds < _MILLISECONDS_FROM:  # false for NaN, too
        raise ValueError("not a time between 1970 and 5138")
    return float(seconds)


def _name(value: object) -> str:
    """An id or an address: text of one line. Hostile ones are refused, not repaired."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("is missing")
    if len(value) > _MAX_NAME:
        raise ValueError(f"has more than {_MAX_NAME} characters")
    if not value.isprintable():
        raise ValueError("has a control character")
    return value


Name = Annotated[str, BeforeValidator(_name)]


class Trigger(QueueMessage):
    """Answer what is staged for this conversation. Its id is the trigger's id.

    `window_id`: the window it ends; its own id unless it stands for an earlier trigger.
    `waited_seconds`: by how much that window was prolonged.
    """

    conversation_id: Name
    primary_channel: Name = Field(repr=False)
    window_id: Annotated[str, BeforeValidator(lambda v: v and _name(v))] = ""
    waited_seconds: float = 0.0

    @property
    def key(self) -> ConversationKey:
        return ConversationKey(self.primary_channel, self.conversation_id)

    @property
    def window(self) -> str:
        return self.window_id or self.id


class Inbound(QueueMessage):
    """One message of a customer's, as staging takes it."""

    model_config = ConfigDict(populate_by_name=True, hide_input_in_errors=True)

    message_sid: Name
    primary_channel: Name = Field(
        repr=False, validation_alias=AliasChoices("primary_channel", "from", "From")
    )
    recipient: str = Field(
        default="", repr=False, validation_alias=AliasChoices("recipient", "to", "To")
    )
    conversation_id: str = ""
    body: str = Field(default="", repr=False)
    received_at: Annotated[float | None, BeforeValidator(lambda v: v and instant(v))] = None
    media: tuple[str, ...] = ()

    @property
    def key(self) -> ConversationKey:
        """Without an id of its own a conversation is what two addresses say to each other."""
        given = self.conversation_id or mark_of(self.recipient, self.primary_channel)
        return ConversationKey(self.primary_channel, given)


def inbound_of(data: Mapping[str, Any]) -> Inbound:
    """Raises InvalidInbound: what is wrong, by field, without what was sent."""
    try:
        return checked(Inbound.model_validate(dict(data)))
    except ValidationError as error:
        problems = error.errors(include_input=False, include_url=False, include_context=False)
        said = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in problems]
        raise InvalidInbound("; ".join(said).replace("Value error, ", "")) from None


def checked(inbound: Inbound) -> Inbound:
    """Raises InvalidInbound for what no reply could be written to, or no store could keep."""
    if not inbound.body.strip() and not inbound.media:
        raise InvalidInbound("the message is empty: no text, nothing attached")
    if len(inbound.body) > MAX_BODY:
        raise InvalidInbound(f"the text has more than {MAX_BODY:,} characters")
    for name in ("conversation_id", "recipient"):
        if (value := getattr(inbound, name)) and (len(value) > 256 or not value.isprintable()):
            raise InvalidInbound(f"{name} is too long or has a control character")
    if len(inbound.media) > _MOST_MEDIA:
        raise InvalidInbound(f"more than {_MOST_MEDIA} files are attached")
    if any(len(kind) > _MAX_KIND or not kind.isprintable() for kind in inbound.media):
        raise InvalidInbound("a media type is too long or has a control character")
    try:
        inbound.body.encode()
    except UnicodeEncodeError:
        raise InvalidInbound("the text is not valid Unicode") from None
    return inbound
