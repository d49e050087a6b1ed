"""Copies of a message: how it gets to the dead letters, back, or to the end of the line."""

import re
from collections.abc import Mapping
from typing import Any

from holdfast.adapters.aws.sqs.hold import Hold
from holdfast.adapters.aws.sqs.sending import legal
from holdfast.adapters.aws.sqs.service import LARGEST_BYTES, Service

Attributes = Mapping[str, Mapping[str, Any]]

REASON, DETAIL = "HoldfastReason", "HoldfastDetail"
ATTEMPTS, SOURCE = "HoldfastAttempts", "HoldfastSource"

_OURS = frozenset({REASON, DETAIL, ATTEMPTS, SOURCE})
_MOST = 10  # attributes of one message
_VALUES = ("DataType", "StringValue", "BinaryValue")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REASON_CHARS, _DETAIL_CHARS = 1_000, 8_000


def send_copy(
    place: Service, hold: Hold, notes: Attributes | None = None, **extra: Any
) -> None:
    """The message as a new one, with `notes` in place of what an earlier copy said."""
    place.patiently(
        "send_message",
        MessageBody=hold.body,
        MessageAttributes=_fitting(hold, notes or {}),
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


def _fitting(hold: Hold, notes: Attributes) -> dict[str, Any]:
    """Our notes, then somebody's own attributes, as many as SQS takes with this body.

    A message that is as large as can be must still reach the dead letters.
    """
    own = {name: value for name, value in hold.attributes.items() if name not in _OURS}
    room = LARGEST_BYTES - len(hold.body.encode("utf-8", "surrogatepass"))
    fitting: dict[str, Any] = {}
    for name, value in (dict(notes) | own).items():
        plain = {key: value[key] for key in _VALUES if key in value}
        room -= len(name) + sum(len(str(part).encode()) for part in plain.values())
        if room < 0 or len(fitting) == _MOST:
            break
        fitting[name] = plain
    return fitting


def _fifo_ids(place: Service, hold: Hold) -> dict[str, str]:
    if not place.address.fifo:
        return {}
    # A copy that had to be sent twice is one. Whatever comes back is a new message to SQS,
    # with a new id, so what dies again within five minutes is not taken for a repetition.
    return {
        "MessageGroupId": legal(hold.group or hold.sqs_id),
        "MessageDeduplicationId": hold.sqs_id,
    }
