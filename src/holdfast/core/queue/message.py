"""Messages: the typed unit of work, its schema versions, and its bytes."""

import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.core.clock import utc_now
from holdfast.core.errors import MalformedMessage, MessageTooLarge, NewerSchema, NotLeased

if TYPE_CHECKING:
    from holdfast.core.lease.lease import Lease

MAX_BYTES = 1024 * 1024
MAX_ID_LENGTH = 512

Upgrader = Callable[[dict[str, Any]], dict[str, Any]]


def new_id() -> str:
    return os.urandom(16).hex()


class QueueMessage(BaseModel):
    """What was pushed. Subclass it with your own typed fields.

    `schema_version`'s default is the version this code writes and understands.
    `upgraders[v]` turns the plain data of version v into version v + 1.
    `attempts` is filled by `poll`: the number of this delivery, from 1.
    """

    # JSON has no NaN and no infinity; as text they come back to a float field unharmed.
    model_config = ConfigDict(ser_json_inf_nan="strings")

    upgraders: ClassVar[Mapping[int, Upgrader]] = {}

    # The lease lives in a slot: pydantic neither serialises, copies nor pickles it, so
    # a message that went through JSON can never settle somebody else's work.
    __slots__ = ("_lease",)

    id: str = Field(default_factory=new_id, min_length=1, max_length=MAX_ID_LENGTH)
    schema_version: int = 1
    attempts: int = Field(default=0, ge=0)
    created_at: datetime = Field(default_factory=utc_now)

    @classmethod
    def current_version(cls) -> int:
        version: int = cls.model_fields["schema_version"].default
        return version


class AnyMessage(QueueMessage):
    """A message whose fields are not known beforehand; what the command line pushes."""

    model_config = ConfigDict(extra="allow")


M = TypeVar("M", bound=QueueMessage)


def lease_of(message: QueueMessage) -> "Lease":
    """The lease a polled message carries."""
    lease: Lease | None = getattr(message, "_lease", None)
    if lease is None:
        raise NotLeased(
            f"message {message.id!r} holds no lease: settle the object that poll() "
            "returned, not a copy or a message that was only pushed"
        )
    return lease


def attach_lease(message: QueueMessage, lease: "Lease") -> None:
    """For queues only: give a polled message its lease and attempt number."""
    object.__setattr__(message, "_lease", lease)
    message.__dict__["attempts"] = lease.attempt


class MessageCodec(Generic[M]):
    """Messages to bytes and back, old versions upgraded on the way."""

    def __init__(self, model: type[M], max_bytes: int = MAX_BYTES) -> None:
        self.model = model
        self.max_bytes = max_bytes
        self._version = model.current_version()
        self._validate = model.__pydantic_validator__.validate_json

    def encode(self, message: M) -> bytes:
        """Raises MessageTooLarge, or MalformedMessage for what JSON cannot carry."""
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
        """Raises MalformedMessage or NewerSchema; never anything else."""
        try:
            message: M = self._validate(body)
        except Exception as error:  # users' validators may raise anything
            return self._decode_other(body, error)
        if message.schema_version == self._version:
            return message
        return self._decode_other(body, None)

    def _decode_other(self, body: bytes, error: Exception | None) -> M:
        data = _plain(body)
        try:
            return self._decode_data(data, error)
        except MalformedMessage as problem:
            problem.message_id = _id_in(data)
            raise

    def _decode_data(self, data: dict[str, Any], error: Exception | None) -> M:
        version = data.get("schema_version", 1)
        if not isinstance(version, int) or isinstance(version, bool):
            raise MalformedMessage(
                f"schema_version is a {type(version).__name__}, not a whole number"
            )
        if version > self._version:
            raise NewerSchema(version, self._version, _id_in(data))
        if version == self._version and error is not None:
            raise MalformedMessage(_first_problem(self.model, error)) from None
        return self._upgrade(data, version)

    def _upgrade(self, data: dict[str, Any], version: int) -> M:
        while version < self._version:
            upgrader = self.model.upgraders.get(version)
            if upgrader is None:
                raise MalformedMessage(
                    f"no upgrader from schema_version {version} to {version + 1}: add "
                    f"{self.model.__name__}.upgraders[{version}], then redrive"
                )
            data = _upgraded(upgrader, data, version)
            version += 1
            data["schema_version"] = version
        try:
            return self.model.model_validate(data)
        except Exception as error:
            raise MalformedMessage(_first_problem(self.model, error)) from None


def _upgraded(upgrader: Upgrader, data: dict[str, Any], version: int) -> dict[str, Any]:
    """Users' code: whatever it does wrong makes the message malformed, not the worker."""
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


def _plain(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise MalformedMessage(f"a JSON object is needed, this is a {type(data).__name__}")
    return data


def _id_in(data: dict[str, Any]) -> str | None:
    """The id of a message that cannot be read, for logs; None when it could not be one."""
    known_id = data.get("id")
    if not isinstance(known_id, str) or not 0 < len(known_id) <= MAX_ID_LENGTH:
        return None
    return None if any("\ud800" <= letter <= "\udfff" for letter in known_id) else known_id


def _first_problem(model: type[BaseModel], error: Exception) -> str:
    """One line, without the input: bodies do not belong in messages and logs."""
    if not isinstance(error, ValidationError):
        return f"not a valid {model.__name__}: a validator raised {type(error).__name__}"
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the message"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"not a valid {model.__name__}: {where}: {first['msg']}{more}"
