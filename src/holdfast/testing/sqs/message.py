"""A message as the service stores it and as it returns it, and the sender's attributes."""

import base64
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import md5
from random import Random
from typing import Any

from holdfast.testing.sqs.errors import invalid_value_error

MAX_ATTRIBUTES = 10

# The system attributes, each with the field of StoredMessage that has its value.
SYSTEM_ATTRIBUTES = {
    "AWSTraceHeader": "trace_header",
    "ApproximateFirstReceiveTimestamp": "first_received_ms",
    "ApproximateReceiveCount": "receives",
    "DeadLetterQueueSourceArn": "source_arn",
    "MessageDeduplicationId": "deduplication_id",
    "MessageGroupId": "group_id",
    "SenderId": "sender_id",
    "SentTimestamp": "sent_ms",
    "SequenceNumber": "sequence_number",
}

_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")

Attributes = Mapping[str, Mapping[str, Any]]
"""The sender's own attributes: a type and a text or bytes for each, as in a response."""


class IdSource:
    """Generates the service's ids, the same for the same seed.

    The caller must hold the service's lock.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def make_uuid(self) -> str:
        """Return a new message or request id."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def make_handle(self) -> str:
        """Return a new receipt handle, which is long and opaque."""
        return base64.b64encode(self._random.randbytes(96)).decode()


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the service stores it. An empty string means that no value was given."""

    message_id: str
    body: str
    attributes: Attributes
    sent_at: float  # on the service's monotonic clock, which measures ages
    sent_ms: int  # on the wall clock, which AWS shows
    visible_at: float
    trace_header: str = ""
    group_id: str = ""
    deduplication_id: str = ""
    sequence_number: str = ""
    source_arn: str = ""  # of a dead letter: the queue it came from
    receives: int = 0
    first_received_ms: int = 0
    received_at: float = 0.0
    handle: str = ""  # of the latest receive
    is_doubled: bool = False  # whether it may be delivered once more while in flight
    sender_id: str = "AIDASIMULATEDSENDER00"

    def received(
        self, handle: str, now: float, wall_ms: int, visible_at: float
    ) -> "StoredMessage":
        """Return the message after one more receive."""
        return replace(
            self,
            receives=self.receives + 1,
            first_received_ms=self.first_received_ms or wall_ms,
            received_at=now,
            handle=handle,
            visible_at=visible_at,
            is_doubled=False,
        )

    def to_response(self, system: Iterable[str], own: tuple[str, ...]) -> dict[str, Any]:
        """Return the message for a response, with the requested attributes."""
        response: dict[str, Any] = {
            "MessageId": self.message_id,
            "ReceiptHandle": self.handle,
            "MD5OfBody": compute_md5(self.body),
            "Body": self.body,
        }
        if selected_system := self._system_attributes(frozenset(system)):
            response["Attributes"] = selected_system
        if selected := _select_attributes(self.attributes, own):
            response["MessageAttributes"] = {name: dict(a) for name, a in selected.items()}
        return response

    def _system_attributes(self, names: frozenset[str]) -> dict[str, str]:
        values = {name: getattr(self, field) for name, field in SYSTEM_ATTRIBUTES.items()}
        return {n: str(v) for n, v in values.items() if v and ("All" in names or n in names)}


def parse_attributes(given: Attributes | None) -> Attributes:
    """Return the attributes of a request. Raises ServiceError if SQS does not accept them."""
    if given is not None and len(given) > MAX_ATTRIBUTES:
        raise invalid_value_error(
            f"Number of message attributes [{len(given)}] exceeds the allowed "
            f"maximum [{MAX_ATTRIBUTES}]."
        )
    return {name: _parse_attribute(name, value) for name, value in (given or {}).items()}


def _parse_attribute(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _ATTRIBUTE_NAME.fullmatch(name):
        raise invalid_value_error(
            f"The message attribute name '{name}' is invalid. Attribute name can contain "
            "A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.) characters."
        )
    data_type = given["DataType"]
    kind = data_type.split(".")[0]
    if kind not in ("String", "Number", "Binary"):
        raise invalid_value_error(
            f"The message attribute '{name}' has an invalid message attribute type, the "
            "set of supported type prefixes is Binary, Number, and String."
        )
    key = "BinaryValue" if kind == "Binary" else "StringValue"
    if not (value := given.get(key)):
        raise invalid_value_error(
            f"Message (user) attribute '{name}' must contain a non-empty value of type "
            f"'{data_type}'."
        )
    return {key: _to_bytes(value) if kind == "Binary" else value, "DataType": data_type}


def _select_attributes(attributes: Attributes, names: tuple[str, ...]) -> Attributes:
    """Return the attributes requested by name, by `prefix.*`, or by All."""
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {
        name: attribute
        for name, attribute in attributes.items()
        if name in names or "All" in names or (prefixes and name.startswith(prefixes))
    }


def count_bytes(body: str, attributes: Attributes) -> int:
    """Count the bytes of a body and its attributes as SQS does."""
    return len(body.encode()) + sum(
        len(_to_bytes(part))
        for name, attribute in attributes.items()
        for part in (name, *attribute.values())
    )


def compute_md5(text: str) -> str:
    """Return the checksum of a body."""
    return md5(text.encode(), usedforsecurity=False).hexdigest()


def _to_bytes(value: str | bytes | bytearray) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
