"""Messages: the typed unit of work, its schema versions, its encoding, and its states."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import is_dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.errors import (
    ConfigError,
    MalformedMessage,
    MessageTooLarge,
    NewerSchema,
    NotLeased,
)
from holdfast.lease.clock import utc_now

if TYPE_CHECKING:
    from holdfast.lease.lease import Lease

MAX_BYTES = 1024 * 1024
MAX_ID_LENGTH = 512
_MAX_NAME_SHOWN = 64  # characters of an unknown field's name
_UNKNOWN_FIELD = "extra_forbidden"  # pydantic's name of this error
# How long a message with unknown fields waits for newer workers. Long enough for a rollout,
# short enough that a misspelt field is noticed on the same day.
UNKNOWN_FIELD_WAIT_SECONDS = 3600.0

Upgrader = Callable[[dict[str, Any]], dict[str, Any]]


def make_id() -> str:
    """Return a new random message id."""
    return os.urandom(16).hex()


class QueueMessage(BaseModel):
    """A message of a queue. Subclass it with your own typed fields.

    The default of `schema_version` is the version that this code writes and understands.
    `upgraders[v]` converts the plain data of version v to version v + 1. `poll` sets
    `attempts` to the number of this delivery, from 1, and attaches the `lease`. A field that
    the model does not have is refused. A polled message with one waits up to an hour for
    workers that know the field, and is a dead letter after that.
    """

    # JSON has neither NaN nor infinity. Written as text, a float field reads them back.
    # An unknown field is refused, because a misspelt one would be lost without notice.
    # Errors do not quote values, because that of a handler is logged with its traceback.
    model_config = ConfigDict(
        ser_json_inf_nan="strings", extra="forbid", hide_input_in_errors=True
    )

    upgraders: ClassVar[Mapping[int, Upgrader]] = {}

    # The lease is stored in a slot, which pydantic does not serialise, copy or pickle. So a
    # message that went through JSON can never settle the work of another worker.
    # The headers and the trace are beside the payload in the same way.
    __slots__ = ("_headers", "_lease", "_trace")

    id: str = Field(default_factory=make_id, min_length=1, max_length=MAX_ID_LENGTH)
    schema_version: int = 1
    attempts: int = Field(default=0, ge=0)
    created_at: datetime = Field(default_factory=utc_now)

    if TYPE_CHECKING:

        @property
        def lease(self) -> "Lease":
            """The lease of a message that `poll` returned. Raises NotLeased for any other.

            A model that has its own field called `lease` keeps it, and hides the lease.
            """
            return get_lease(self)

    else:
        # A real property would hide the data of models that have a field called `lease`:
        # pydantic takes a property for the field's default value. Python calls __getattr__
        # only if the message has no data under that name.
        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name != "lease":
                    raise
            return get_lease(self)

    @classmethod
    def current_version(cls) -> int:
        """Return the schema version that this code writes."""
        version: int = cls.model_fields["schema_version"].default
        return version


class AnyMessage(QueueMessage):
    """A message with any fields. The command line pushes these."""

    model_config = ConfigDict(extra="allow")


M = TypeVar("M", bound=QueueMessage)
P = TypeVar("P")


class Message(QueueMessage, Generic[P]):
    """A message whose payload is an object of your own: a dataclass or a pydantic model.

    `open_queue(url, Enrich)` opens a queue of `Message[Enrich]`. Its `push` also takes the
    object itself; `Message(payload=…, id=…)` gives the message an id of your choice.
    """

    payload: P

    def __new__(cls, *_: Any, **fields: Any) -> "Message[P]":
        # Without this, Message(payload=Enrich(…)) would be a message of any payload at run
        # time, although type checkers see a Message[Enrich].
        if cls is Message and "payload" in fields:
            cls = Message[type(fields["payload"])]  # type: ignore[assignment, misc]
        return super().__new__(cls)


def is_payload_type(kind: Any) -> bool:
    """Return whether the payload of a message can be of this type."""
    if not isinstance(kind, type) or issubclass(kind, QueueMessage):
        return False
    return issubclass(kind, BaseModel) or is_dataclass(kind)


def to_message_model(model: type) -> type[QueueMessage]:
    """Return the model of a queue's messages: `model` itself, or Message[model].

    Raises ConfigError unless it is a QueueMessage, a pydantic model or a dataclass.
    """
    if isinstance(model, type) and issubclass(model, QueueMessage):
        return model
    if is_payload_type(model):
        return Message[model]  # type: ignore[valid-type]
    raise ConfigError(
        f"{getattr(model, '__name__', model)!r} is not a message type; use a QueueMessage, a "
        "pydantic model or a dataclass"
    )


def get_lease(message: QueueMessage) -> "Lease":
    """Return the lease of a polled message, also if a field called `lease` hides it.

    Raises NotLeased if `poll` did not return this object.
    """
    lease: Lease | None = getattr(message, "_lease", None)
    if lease is None:
        raise NotLeased(
            f"message {message.id!r} holds no lease: settle the object that poll() "
            "returned, not a copy or a message that was only pushed"
        )
    return lease


_set_lease = QueueMessage.__dict__["_lease"].__set__


def attach_lease(message: QueueMessage, lease: "Lease") -> None:
    """Attach the lease and the attempt number to a polled message. Only queues call this."""
    _set_lease(message, lease)
    message.__dict__["attempts"] = lease.attempt


Headers = Mapping[str, str]
"""What travels beside the payload of a message: the context of a trace, as W3C writes it."""


# Without pydantic's search for an attribute that is not set, which takes microseconds.
_headers_slot = QueueMessage.__dict__["_headers"]


def get_headers(message: QueueMessage) -> Headers | None:
    """Return the headers of a message, or None if it has none."""
    try:
        headers: Headers = _headers_slot.__get__(message)
    except AttributeError:
        return None
    return headers


_trace_slot = QueueMessage.__dict__["_trace"]


def get_trace(message: QueueMessage) -> Any:
    """Return what tracing attached to a polled message, or None."""
    try:
        return _trace_slot.__get__(message)
    except AttributeError:
        return None


def attach_trace(message: QueueMessage, trace: Any) -> None:
    """Attach what tracing must know about a polled message. Only tracing uses it."""
    _trace_slot.__set__(message, trace)


def attach_headers(message: QueueMessage, headers: Headers) -> None:
    """Attach headers to a message before it is pushed, or when it is polled."""
    object.__setattr__(message, "_headers", headers)


def pack_headers(message: QueueMessage) -> str | None:
    """Return the headers of a message as JSON, or None if it has none."""
    headers = get_headers(message)
    return None if headers is None else json.dumps(dict(headers), separators=(",", ":"))


def unpack_headers(packed: str | bytes | None) -> Headers | None:
    """Return headers as `pack_headers` packed them, or None for anything else."""
    try:
        headers = json.loads(packed or "null")
    except (ValueError, RecursionError):
        return None
    is_valid = isinstance(headers, dict) and all(isinstance(v, str) for v in headers.values())
    return headers if is_valid else None


class MessageCodec(Generic[M]):
    """Encodes messages as bytes, and decodes bytes with an upgrade from older versions."""

    def __init__(self, model: type[M], max_bytes: int = MAX_BYTES) -> None:
        self.model = model
        self.max_bytes = max_bytes
        self._version = model.current_version()
        self._validate = model.__pydantic_validator__.validate_json

    def encode(self, message: M) -> bytes:
        """Encode a message as JSON. Raises MessageTooLarge or MalformedMessage."""
        if not isinstance(message, self.model):
            raise MalformedMessage(
                f"this queue takes {self.model.__name__}, not {type(message).__name__}"
            )
        try:
            body: bytes = message.__pydantic_serializer__.to_json(message)
        except ValueError as error:
            raise MalformedMessage(
                f"message {message.id!r} cannot be written as JSON: {error}"
            ) from None
        if len(body) > self.max_bytes:
            raise MessageTooLarge(
                f"message {message.id!r} is {len(body):,} bytes, the limit is "
                f"{self.max_bytes:,}: store the payload elsewhere and push its address"
            )
        return body

    def decode(self, body: bytes) -> M:
        """Decode a message of this or an older version.

        Raises MalformedMessage or NewerSchema, and no other exception.
        """
        try:
            message: M = self._validate(body)
        except Exception as error:  # users' validators may raise anything
            return self._decode_other(body, error)
        if message.schema_version == self._version:
            return message
        return self._decode_other(body, None)

    def _decode_other(self, body: bytes, error: Exception | None) -> M:
        """Decode what is not a valid message of the current version."""
        data = _parse_object(body)
        try:
            return self._decode_data(data, error)
        except MalformedMessage as problem:
            problem.message_id = _find_id(data)
            raise

    def _decode_data(self, data: dict[str, Any], error: Exception | None) -> M:
        version = data.get("schema_version", 1)
        if not isinstance(version, int) or isinstance(version, bool):
            raise MalformedMessage(
                f"schema_version is a {type(version).__name__}, not a whole number"
            )
        if version > self._version:
            problem = f"schema_version {version} is newer than this code's {self._version}"
            raise NewerSchema(problem, version, _find_id(data))
        if version == self._version and error is not None:
            problem = _describe_first_problem(self.model, error)
            if _has_only_unknown_fields(error) and _is_recent(data):
                raise NewerSchema(problem, version, _find_id(data)) from None
            raise MalformedMessage(problem) from None
        return self._upgrade(data, version)

    def _upgrade(self, data: dict[str, Any], version: int) -> M:
        while version < self._version:
            upgrader = self.model.upgraders.get(version)
            if upgrader is None:
                raise MalformedMessage(
                    f"no upgrader from schema_version {version} to {version + 1}: add "
                    f"{self.model.__name__}.upgraders[{version}], then redrive"
                )
            data = _apply_upgrader(upgrader, data, version)
            version += 1
            data["schema_version"] = version
        try:
            return self._validate_upgraded(data)
        except Exception as error:
            raise MalformedMessage(_describe_first_problem(self.model, error)) from None

    def _validate_upgraded(self, data: dict[str, Any]) -> M:
        """Validate upgraded data without the fields that only older versions had.

        So an upgrader need not remove what a later version no longer has.
        """
        try:
            return self.model.model_validate(data)
        except ValidationError as error:
            places = [
                detail["loc"]
                for detail in error.errors(include_input=False, include_url=False)
                if detail["type"] == _UNKNOWN_FIELD
            ]
        known = {name: data[name] for name in data if (name,) not in places}
        return self.model.model_validate(known)


def _apply_upgrader(upgrader: Upgrader, data: dict[str, Any], version: int) -> dict[str, Any]:
    """Run a user's upgrader. An error makes the message malformed but not the worker fail."""
    try:
        upgraded = upgrader(data)
    except Exception as error:
        raise MalformedMessage(
            f"upgrader from schema_version {version} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(upgraded, dict):
        raise MalformedMessage(
            f"upgrader from schema_version {version} returned a {type(upgraded).__name__}, "
            "not a dict"
        )
    return upgraded


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise MalformedMessage(f"a JSON object is needed, this is a {type(data).__name__}")
    return data


def find_id(body: bytes) -> str | None:
    """Return the id in a body without validating the rest, or None if it has no valid id."""
    try:
        return _find_id(_parse_object(body))
    except MalformedMessage:
        return None


def _find_id(data: dict[str, Any]) -> str | None:
    """Return the id of a message that cannot be decoded, or None if it has no valid id."""
    message_id = data.get("id")
    if not isinstance(message_id, str) or not 0 < len(message_id) <= MAX_ID_LENGTH:
        return None
    is_text = not any("\ud800" <= letter <= "\udfff" for letter in message_id)
    return message_id if is_text else None


def _has_only_unknown_fields(error: Exception) -> bool:
    return isinstance(error, ValidationError) and all(
        detail["type"] == _UNKNOWN_FIELD
        for detail in error.errors(include_input=False, include_url=False)
    )


def _is_recent(data: dict[str, Any]) -> bool:
    """Return whether our code wrote the message a short time ago.

    A message without `created_at` was not written by a QueueMessage, so no newer model of
    one can be the reason for its unknown fields.
    """
    if "created_at" not in data:
        return False
    try:
        created_at = QueueMessage(created_at=data["created_at"]).created_at.timestamp()
    except (ValueError, OverflowError):
        return False
    # The difference may be negative, because the clocks of two machines differ.
    return abs(utc_now().timestamp() - created_at) < UNKNOWN_FIELD_WAIT_SECONDS


def _describe_first_problem(model: type[BaseModel], error: Exception) -> str:
    """Return one line without the input, because bodies do not belong in errors and logs."""
    if not isinstance(error, ValidationError):
        return f"not a valid {model.__name__}: a validator raised {type(error).__name__}"
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the message"
    problem = first["msg"]
    if first["type"] == _UNKNOWN_FIELD:  # its name is text of the producer
        where, problem = repr(where[:_MAX_NAME_SHOWN]), "unknown field"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"not a valid {model.__name__}: {where}: {problem}{more}"


class MessageState(Enum):
    """The state of a message. A delayed message is PENDING with a due time in the future."""

    PENDING = "pending"
    LEASED = "leased"
    COMPLETED = "completed"
    FAILED = "failed"


@final
class SettleResult(Enum):
    """What happened to the message. WorkerReport has a count for each."""

    # Enum hashes by name in Python code, which is slow for a count per message.
    __hash__ = object.__hash__

    COMPLETED = "completed"
    RETRIED = "retried"
    DEAD_LETTERED = "dead-lettered"
    GIVEN_BACK = "given back"
    ABANDONED = "abandoned"


class EnrichmentMessage(QueueMessage):
    """A company's website that a scraper found, and that a worker is to enrich."""

    domain: str
    company_slug: str
    campaign_name: str


NoteOutcome = Callable[[object], None]


class Tracing(Protocol):
    """Shows what happens to messages as spans."""

    def processing(self, message: Any) -> AbstractContextManager[NoteOutcome]:
        """Return the span of one attempt, which is current inside the block.

        Call what it yields with the attempt's outcome.
        """
