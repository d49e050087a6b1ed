"""A message as the service keeps it, and as it answers with it."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import md5
from typing import Any

SYSTEM_ATTRIBUTES = (
    "AWSTraceHeader",
    "ApproximateFirstReceiveTimestamp",
    "ApproximateReceiveCount",
    "DeadLetterQueueSourceArn",
    "MessageDeduplicationId",
    "MessageGroupId",
    "SenderId",
    "SentTimestamp",
    "SequenceNumber",
)

SENDER_ID = "AIDASIMULATEDSENDER00"


@dataclass(frozen=True, slots=True)
class UserAttribute:
    """One of the sender's own attributes."""

    data_type: str
    value: str | bytes

    @property
    def as_bytes(self) -> bytes:
        return self.value if isinstance(self.value, bytes) else self.value.encode()

    @property
    def as_answer(self) -> dict[str, Any]:
        kind = "BinaryValue" if isinstance(self.value, bytes) else "StringValue"
        return {kind: self.value, "DataType": self.data_type}


Attributes = Mapping[str, UserAttribute]


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """Empty texts stand for what the sender did not give."""

    message_id: str
    body: str
    attributes: Attributes
    sent_at: float  # on the service's monotonic clock: ages are counted on it
    sent_ms: int  # on the wall clock: what AWS shows
    visible_at: float
    trace_header: str = ""
    group_id: str = ""
    deduplication_id: str = ""
    sequence_number: str = ""
    source_arn: str = ""  # the queue it was a dead letter of
    receives: int = 0
    first_received_ms: int = 0
    received_at: float = 0.0
    handle: str = ""  # of the latest receive
    is_doubled: bool = False  # may be delivered once more although it is in flight

    def received(
        self, handle: str, now: float, wall_ms: int, visible_at: float
    ) -> "StoredMessage":
        return replace(
            self,
            receives=self.receives + 1,
            first_received_ms=self.first_received_ms or wall_ms,
            received_at=now,
            handle=handle,
            visible_at=visible_at,
            is_doubled=False,
        )

    def redriven(self, message_id: str, now: float, wall_ms: int) -> "StoredMessage":
        """As a move task sends it on: AWS counts it as a new message."""
        return StoredMessage(
            message_id=message_id,
            body=self.body,
            attributes=self.attributes,
            sent_at=now,
            sent_ms=wall_ms,
            visible_at=now,
            trace_header=self.trace_header,
            group_id=self.group_id,
            deduplication_id=self.deduplication_id,
        )

    @property
    def size(self) -> int:
        """Bytes counted against MaximumMessageSize."""
        return size_of(self.body, self.attributes)

    def answer(self, system: Iterable[str], own: Iterable[str]) -> dict[str, Any]:
        """One of `Messages` in the reply, with the attributes asked for."""
        shown: dict[str, Any] = {
            "MessageId": self.message_id,
            "ReceiptHandle": self.handle,
            "MD5OfBody": md5_of(self.body),
            "Body": self.body,
        }
        if asked_system := self._system_attributes(frozenset(system)):
            shown["Attributes"] = asked_system
        if asked := chosen(self.attributes, tuple(own)):
            shown["MessageAttributes"] = {n: a.as_answer for n, a in asked.items()}
            shown["MD5OfMessageAttributes"] = md5_of_attributes(asked)
        return shown

    def _system_attributes(self, names: frozenset[str]) -> dict[str, str]:
        known = {
            "AWSTraceHeader": self.trace_header,
            "ApproximateFirstReceiveTimestamp": str(self.first_received_ms),
            "ApproximateReceiveCount": str(self.receives),
            "DeadLetterQueueSourceArn": self.source_arn,
            "MessageDeduplicationId": self.deduplication_id,
            "MessageGroupId": self.group_id,
            "SenderId": SENDER_ID,
            "SentTimestamp": str(self.sent_ms),
            "SequenceNumber": self.sequence_number,
        }
        return {n: v for n, v in known.items() if v and ("All" in names or n in names)}


def size_of(body: str, attributes: Attributes) -> int:
    return len(body.encode()) + sum(
        len(name.encode()) + len(attribute.data_type.encode()) + len(attribute.as_bytes)
        for name, attribute in attributes.items()
    )


def chosen(attributes: Attributes, names: tuple[str, ...]) -> dict[str, UserAttribute]:
    """Those asked for by name, by `prefix.*`, or by All."""
    prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))
    return {
        name: attribute
        for name, attribute in attributes.items()
        if name in names or "All" in names or (prefixes and name.startswith(prefixes))
    }


def md5_of(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Attributes) -> str:
    """Over name, type and value, each after its length; a byte tells text from binary."""
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes):
        attribute = attributes[name]
        digest.update(_measured(name.encode()) + _measured(attribute.data_type.encode()))
        digest.update(b"\x02" if isinstance(attribute.value, bytes) else b"\x01")
        digest.update(_measured(attribute.as_bytes))
    return digest.hexdigest()


def _measured(value: bytes) -> bytes:
    return struct.pack("!I", len(value)) + value
