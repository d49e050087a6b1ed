"""Send copies of a message: to the dead letters, back from them, or to the queue's end."""

import re
from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.sqs.queue_client import QueueClient, Receipt
from holdfast.adapters.aws.sqs.sending import to_sqs_id

Attributes = Mapping[str, Mapping[str, Any]]

REASON, DETAIL = "HoldfastReason", "HoldfastDetail"
ATTEMPTS, SOURCE = "HoldfastAttempts", "HoldfastSource"

_HOLDFAST_NAMES = frozenset({REASON, DETAIL, ATTEMPTS, SOURCE})
_MAX_ATTRIBUTES = 10  # attributes of one message
_VALUES = ("DataType", "StringValue", "BinaryValue")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MAX_REASON_CHARS, _MAX_DETAIL_CHARS = 1_000, 8_000
_SHORT_REASON_BYTES = 150  # of a reason, name and type counted: it is kept before all the rest


def send_copy(
    queue: QueueClient, receipt: Receipt, notes: Attributes | None = None, **extra: Any
) -> None:
    """Send the message as a new one, with `notes` instead of the notes of an earlier copy.

    It carries as many notes as the queue accepts with this body. Raises MessageTooLarge if
    the queue does not accept the body. Without notes the sender's own attributes must fit as
    well; otherwise the copy would have less than the original, which is safe where it is.
    """
    sender_attributes = _get_sender_attributes(receipt)
    body_bytes = len(receipt.body.encode("utf-8", "surrogatepass"))
    min_bytes = body_bytes + (0 if notes else _count_bytes(sender_attributes))
    room = queue.check_size(receipt.sqs_id, min_bytes) - body_bytes
    attributes = _select_fitting(notes or {}, sender_attributes, room)
    queue.send(
        receipt.sqs_id,
        body_bytes + _count_bytes(attributes),
        MessageBody=receipt.body,
        MessageAttributes=attributes,
        **_make_fifo_ids(queue, receipt),
        **extra,
    )


def make_dead_letter_notes(
    source: str, reason: str, detail: str | None, attempts: int
) -> Attributes:
    """Return the attributes that explain a dead letter, the most important first."""
    notes = {
        SOURCE: _make_text_attribute(source, _MAX_REASON_CHARS),
        ATTEMPTS: {"DataType": "Number", "StringValue": str(attempts)},
        REASON: _make_text_attribute(reason, _MAX_REASON_CHARS),
    }
    return (
        notes | {DETAIL: _make_text_attribute(detail, _MAX_DETAIL_CHARS)} if detail else notes
    )


def _make_text_attribute(text: str, max_chars: int) -> dict[str, str]:
    clean = _NOT_XML.sub("?", text)[:max_chars] or "(none)"
    return {"DataType": "String", "StringValue": clean}


def _get_sender_attributes(receipt: Receipt) -> dict[str, Any]:
    return {
        name: {key: value[key] for key in _VALUES if key in value}
        for name, value in receipt.attributes.items()
        if name not in _HOLDFAST_NAMES
    }


def _select_fitting(
    notes: Attributes, sender_attributes: Attributes, room: int
) -> dict[str, Any]:
    """Select the attributes that fit into `room` bytes.

    First come the notes with a short reason, then the sender's own attributes, then as much
    of the reason and of the detail as there is room for.
    """
    short = {
        name: _shorten(name, value, _SHORT_REASON_BYTES)
        for name, value in notes.items()
        if name != DETAIL
    }
    fitting: dict[str, Any] = {}
    for name, value in [*short.items(), *sender_attributes.items(), *notes.items()]:
        others = {other: fitting[other] for other in fitting if other != name}
        cut = _shorten(name, value, room - _count_bytes(others))
        if len(others) < _MAX_ATTRIBUTES and cut.get("StringValue") != "":
            with_it = {**others, name: cut}
            fitting = with_it if _count_bytes(with_it) <= room else fitting
    return fitting


def _shorten(name: str, value: Mapping[str, Any], room: int) -> Mapping[str, Any]:
    """Shorten a reason or a detail to `room` bytes, including its name and type."""
    if name not in (REASON, DETAIL):
        return value
    left = max(0, room - _count_bytes({name: {**value, "StringValue": ""}}))
    text = str(value["StringValue"]).encode()[:left].decode(errors="ignore")
    return {**value, "StringValue": text}


def _count_bytes(attributes: Attributes) -> int:
    """Count bytes as SQS does: names, types and values."""
    return sum(
        len(part if isinstance(part, bytes) else str(part).encode())
        for name, value in attributes.items()
        for part in (name, *value.values())
    )


def _make_fifo_ids(queue: QueueClient, receipt: Receipt) -> dict[str, str]:
    if not queue.address.fifo:
        return {}
    # With SQS's id, a copy that had to be sent twice is stored once. A message that is sent
    # back is new to SQS and has a new id, so if it is dead-lettered again within five
    # minutes, its copy is not taken for a duplicate.
    return {
        "MessageGroupId": to_sqs_id(receipt.system.get("MessageGroupId") or receipt.sqs_id),
        "MessageDeduplicationId": receipt.sqs_id,
    }
