"""Copies of a message: how it gets to the dead letters, back, or to the end of the line."""

import re
from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.sqs.queue_client import QueueClient
from holdfast.adapters.aws.sqs.receipt import Receipt
from holdfast.adapters.aws.sqs.sending import legal

Attributes = Mapping[str, Mapping[str, Any]]

REASON, DETAIL = "HoldfastReason", "HoldfastDetail"
ATTEMPTS, SOURCE = "HoldfastAttempts", "HoldfastSource"

_OURS = frozenset({REASON, DETAIL, ATTEMPTS, SOURCE})
_MOST = 10  # attributes of one message
_VALUES = ("DataType", "StringValue", "BinaryValue")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REASON_CHARS, _DETAIL_CHARS = 1_000, 8_000
_SHORT_BYTES = 150  # of a reason, name and type counted: it is kept before all the rest


def send_copy(
    place: QueueClient, hold: Receipt, notes: Attributes | None = None, **extra: Any
) -> None:
    """Send the message as a new one, with `notes` in place of what an earlier copy said.

    As many notes are sent as the queue takes with this body. Raises MessageTooLarge when
    it does not take the body. Without notes the sender's own attributes must fit as well:
    the message is safe where it is, and would come back as less than was sent.
    """
    own = _own_attributes(hold)
    body_bytes = len(hold.body.encode("utf-8", "surrogatepass"))
    least = body_bytes + (0 if notes else _bytes(own))
    room = place.limit_for(hold.sqs_id, least) - body_bytes
    attributes = _fitting(notes or {}, own, room)
    place.send(
        hold.sqs_id,
        body_bytes + _bytes(attributes),
        MessageBody=hold.body,
        MessageAttributes=attributes,
        **_fifo_ids(place, hold),
        **extra,
    )


def why_dead(source: str, reason: str, detail: str | None, attempts: int) -> Attributes:
    """What a dead letter says about itself, the most important first."""
    notes = {
        SOURCE: _text(source, _REASON_CHARS),
        ATTEMPTS: {"DataType": "Number", "StringValue": str(attempts)},
        REASON: _text(reason, _REASON_CHARS),
    }
    return notes | {DETAIL: _text(detail, _DETAIL_CHARS)} if detail else notes


def _text(text: str, longest: int) -> dict[str, str]:
    clean = _NOT_XML.sub("?", text)[:longest] or "(none)"
    return {"DataType": "String", "StringValue": clean}


def _own_attributes(hold: Receipt) -> dict[str, Any]:
    return {
        name: {key: value[key] for key in _VALUES if key in value}
        for name, value in hold.attributes.items()
        if name not in _OURS
    }


def _fitting(notes: Attributes, own: Attributes, room: int) -> dict[str, Any]:
    """Choose what fits into `room` bytes: the notes with a short reason, the sender's own
    attributes, then as much of the reason and of the detail as there is room for.
    """
    short = {
        name: _cut(name, value, _SHORT_BYTES) for name, value in notes.items() if name != DETAIL
    }
    fitting: dict[str, Any] = {}
    for name, value in [*short.items(), *own.items(), *notes.items()]:
        others = {other: fitting[other] for other in fitting if other != name}
        cut = _cut(name, value, room - _bytes(others))
        if len(others) < _MOST and cut.get("StringValue") != "":
            with_it = {**others, name: cut}
            fitting = with_it if _bytes(with_it) <= room else fitting
    return fitting


def _cut(name: str, value: Mapping[str, Any], room: int) -> Mapping[str, Any]:
    """Shorten a reason or a detail to `room` bytes, its name and type counted."""
    if name not in (REASON, DETAIL):
        return value
    left = max(0, room - _bytes({name: {**value, "StringValue": ""}}))
    text = str(value["StringValue"]).encode()[:left].decode(errors="ignore")
    return {**value, "StringValue": text}


def _bytes(attributes: Attributes) -> int:
    """What SQS counts: names, types and values."""
    return sum(
        len(part if isinstance(part, bytes) else str(part).encode())
        for name, value in attributes.items()
        for part in (name, *value.values())
    )


def _fifo_ids(place: QueueClient, hold: Receipt) -> dict[str, str]:
    if not place.address.fifo:
        return {}
    # A copy that had to be sent twice is one. Whatever comes back is a new message to SQS,
    # with a new id, so what dies again within five minutes is not taken for a repetition.
    return {
        "MessageGroupId": legal(hold.group or hold.sqs_id),
        "MessageDeduplicationId": hold.sqs_id,
    }
