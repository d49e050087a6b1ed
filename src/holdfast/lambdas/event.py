"""What Lambda hands to a function whose event source is an SQS queue, and takes back."""

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BatchResponse = dict[str, list[dict[str, str]]]


@dataclass(frozen=True, slots=True)
class SqsRecord:
    """One record of the batch."""

    id: str
    """SQS's own message id: what Lambda calls the itemIdentifier."""
    group: str
    """Its FIFO group; empty when it has none."""
    source_arn: str
    raw: Mapping[str, Any] = field(repr=False)
    """As `ReceiveMessage` would have given it."""


def deliveries(event: Any) -> list[SqsRecord]:
    """The records in order. The last delivery of a message counts, should it come twice.

    Raises ValueError when this is no event of an SQS event source.
    """
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, Sequence) or isinstance(records, str):
        raise ValueError("not an SQS event: it has no list of Records")
    return list({one.id: one for one in map(_delivery, records)}.values())


def _delivery(record: Any) -> SqsRecord:
    identity = record.get("messageId") if isinstance(record, Mapping) else None
    if not isinstance(identity, str) or not identity:
        raise ValueError("not an SQS event: a record has no messageId")
    attributes = record.get("attributes") or {}
    raw = {
        "MessageId": identity,
        "ReceiptHandle": record.get("receiptHandle") or "",
        "Body": record.get("body") or "",
        "Attributes": attributes,
        "MessageAttributes": _own_attributes(record.get("messageAttributes") or {}),
    }
    group = str(attributes.get("MessageGroupId", ""))
    return SqsRecord(identity, group, str(record.get("eventSourceARN", "")), raw)


def _own_attributes(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The sender's, in the words of SQS; Lambda writes bytes as base64."""
    return {name: _own_attribute(value) for name, value in found.items()}


def _own_attribute(found: Mapping[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = {"DataType": found.get("dataType", "String")}
    if found.get("stringValue") is not None:
        value["StringValue"] = found["stringValue"]
    if found.get("binaryValue") is not None:
        value["BinaryValue"] = b64decode(found["binaryValue"])
    return value


def response(failed: Iterable[str]) -> BatchResponse:
    """What is not named here, Lambda deletes."""
    return {"batchItemFailures": [{"itemIdentifier": identity} for identity in failed]}
