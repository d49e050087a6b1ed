"""What Lambda passes for an SQS event source, and the response it expects."""

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from holdfast.errors import HoldfastError

BatchResponse = dict[str, list[dict[str, str]]]


@dataclass(frozen=True, slots=True)
class SqsRecord:
    """One record of the batch."""

    id: str
    """The message id of SQS, which Lambda calls itemIdentifier."""
    group: str
    """Its FIFO group, or '' if it has none."""
    source_arn: str
    raw: Mapping[str, Any] = field(repr=False)
    """The message as `ReceiveMessage` would have returned it."""


def parse_records(event: Any) -> list[SqsRecord]:
    """Return the records in order. If a message occurs twice, its last delivery counts.

    Raises ValueError if this is not an event of an SQS event source.
    """
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, Sequence) or isinstance(records, str):
        raise ValueError("not an SQS event: it has no list of Records")
    return list({record.id: record for record in map(_parse_record, records)}.values())


def _parse_record(record: Any) -> SqsRecord:
    message_id = record.get("messageId") if isinstance(record, Mapping) else None
    if not isinstance(message_id, str) or not message_id:
        raise ValueError("not an SQS event: a record has no messageId")
    attributes = record.get("attributes") or {}
    raw = {
        "MessageId": message_id,
        "ReceiptHandle": record.get("receiptHandle") or "",
        "Body": record.get("body") or "",
        "Attributes": attributes,
        "MessageAttributes": _convert_attributes(record.get("messageAttributes") or {}),
    }
    group = str(attributes.get("MessageGroupId", ""))
    return SqsRecord(message_id, group, str(record.get("eventSourceARN", "")), raw)


def _convert_attributes(attributes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Convert the sender's attributes to the names of SQS; Lambda encodes bytes as base64."""
    return {name: _convert_attribute(value) for name, value in attributes.items()}


def _convert_attribute(attribute: Mapping[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = {"DataType": attribute.get("dataType", "String")}
    if attribute.get("stringValue") is not None:
        value["StringValue"] = attribute["stringValue"]
    if attribute.get("binaryValue") is not None:
        value["BinaryValue"] = b64decode(attribute["binaryValue"])
    return value


def report_failures(failed: Iterable[str]) -> BatchResponse:
    """Return the response for Lambda, which deletes every message not named in it."""
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def seconds_left(context: Any) -> float:
    """Return the time left of the invocation, or infinity without a Lambda context."""
    get_remaining = getattr(context, "get_remaining_time_in_millis", None)
    return inf if get_remaining is None else float(get_remaining()) / 1000


def log_safe_error(error: Exception) -> Any:
    """Return what a log may show of an error.

    Only the texts of HoldfastError are certain to contain no receipt, body or number.
    """
    return error if isinstance(error, HoldfastError) else type(error).__name__
