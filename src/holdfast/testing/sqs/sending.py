"""SendMessage and SendMessageBatch."""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from holdfast.core.clock import Clock
from holdfast.testing.sqs.batch import Response
from holdfast.testing.sqs.errors import (
    ServiceError,
    invalid_value_error,
    missing_parameter_error,
    out_of_range_error,
    sqs_error,
)
from holdfast.testing.sqs.message import (
    Attributes,
    IdSource,
    StoredMessage,
    UserAttribute,
    compute_attributes_md5,
    compute_md5,
    count_bytes,
)
from holdfast.testing.sqs.queue import SimulatedQueue

MAX_DELAY_SECONDS = 900
MAX_BATCH_BYTES = 1_048_576
MAX_ATTRIBUTES = 10

_NOT_ALLOWED = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FIFO_ID = re.compile(r"[!-~]{1,128}")
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_WRONG_QUEUE_TYPE = "The request include parameter that is not valid for this queue type."

Entry = dict[str, Any]


def check_send_batch(queue: SimulatedQueue, entries: Sequence[Entry]) -> None:
    """Raise ServiceError for a batch that AWS refuses as a whole.

    It does so for a batch that is too large, and for ids that do not fit the queue's type.
    Other problems make single entries fail.
    """
    total = sum(
        count_bytes(
            entry["MessageBody"].encode(errors="replace").decode(),
            _parse_attributes(entry.get("MessageAttributes") or {}),
        )
        for entry in entries
    )
    if total > MAX_BATCH_BYTES:
        raise sqs_error(
            "BatchRequestTooLong",
            f"Batch requests cannot be longer than {MAX_BATCH_BYTES} bytes. "
            f"You have sent {total} bytes.",
        )
    no_group = invalid_value_error(missing_parameter_error("MessageGroupId").message)
    for entry in entries:
        _check_ids(queue, entry, no_group)


class MessageSending:
    """The send operation. The caller must hold the service's lock."""

    def __init__(self, clock: Clock, ids: IdSource) -> None:
        self._clock, self._ids = clock, ids

    def send(self, queue: SimulatedQueue, entry: Entry) -> Response:
        """Handle SendMessage, or one entry of SendMessageBatch."""
        _check_ids(queue, entry, missing_parameter_error("MessageGroupId"))
        message = self._make_message(queue, entry)
        now = self._clock.monotonic()
        if queue.settings.is_fifo:
            stored = queue.sent_before(message, now)
            if stored is None:
                stored = queue.add(message)
                queue.remember_sent(stored, now)
        else:
            stored = queue.add(message)
        return _make_response(stored, message)

    def _make_message(self, queue: SimulatedQueue, entry: Entry) -> StoredMessage:
        body = entry["MessageBody"]
        _check_body(body)
        attributes = _parse_attributes(entry.get("MessageAttributes") or {})
        max_bytes = queue.settings.get_number("MaximumMessageSize")
        if count_bytes(body, attributes) > max_bytes:
            raise invalid_value_error(
                "One or more parameters are invalid. Reason: Message must be shorter "
                f"than {max_bytes} bytes."
            )
        system = _parse_attributes(entry.get("MessageSystemAttributes") or {})
        trace = system.get("AWSTraceHeader")
        now = self._clock.monotonic()
        return StoredMessage(
            message_id=self._ids.make_uuid(),
            body=body,
            attributes=attributes,
            sent_at=now,
            sent_ms=int(self._clock.time() * 1000),
            visible_at=now + _choose_delay_seconds(queue, entry),
            trace_header=str(trace.value) if trace else "",
            group_id=entry.get("MessageGroupId") or "",
            deduplication_id=_choose_deduplication_id(queue, entry),
        )


def _make_response(stored: StoredMessage, sent: StoredMessage) -> Response:
    """Return the response; for a duplicate, with the id of the first and its own checksums."""
    response: Response = {
        "MessageId": stored.message_id,
        "MD5OfMessageBody": compute_md5(sent.body),
    }
    if sent.attributes:
        response["MD5OfMessageAttributes"] = compute_attributes_md5(sent.attributes)
    if stored.sequence_number:
        response["SequenceNumber"] = stored.sequence_number
    return response


def _check_ids(queue: SimulatedQueue, entry: Entry, no_group: ServiceError) -> None:
    for name in ("MessageGroupId", "MessageDeduplicationId"):
        if name in entry and not _FIFO_ID.fullmatch(entry[name]):
            reason = f"{name} can only include alphanumeric and punctuation characters."
            raise out_of_range_error(name, entry[name], f"{reason} 1 to 128 in length.")
    if not queue.settings.is_fifo:
        if "MessageDeduplicationId" in entry:
            raise out_of_range_error(
                "MessageDeduplicationId", entry["MessageDeduplicationId"], _WRONG_QUEUE_TYPE
            )
        return  # a group id is allowed, because it makes a standard queue fair
    if "MessageGroupId" not in entry:
        raise no_group
    by_content = queue.settings.texts.get("ContentBasedDeduplication") == "true"
    if not by_content and "MessageDeduplicationId" not in entry:
        raise invalid_value_error(
            "The queue should either have ContentBasedDeduplication enabled or "
            "MessageDeduplicationId provided explicitly"
        )


def _choose_deduplication_id(queue: SimulatedQueue, entry: Entry) -> str:
    if given := entry.get("MessageDeduplicationId"):
        return str(given)
    if queue.settings.is_fifo:
        return sha256(entry["MessageBody"].encode()).hexdigest()
    return ""


def _choose_delay_seconds(queue: SimulatedQueue, entry: Entry) -> int:
    delay = entry.get("DelaySeconds")
    if delay is not None and not 0 <= delay <= MAX_DELAY_SECONDS:
        raise out_of_range_error(
            "DelaySeconds", delay, f"DelaySeconds must be >= 0 and <= {MAX_DELAY_SECONDS}."
        )
    if queue.settings.is_fifo and delay:
        raise out_of_range_error("DelaySeconds", delay, _WRONG_QUEUE_TYPE)
    if delay is None or queue.settings.is_fifo:
        return queue.settings.get_number("DelaySeconds")
    return int(delay)


def _check_body(body: str) -> None:
    if not body:
        raise missing_parameter_error("MessageBody")
    if _NOT_ALLOWED.search(body):
        raise ServiceError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | "
            "#x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
        )


def _parse_attributes(given: Mapping[str, Mapping[str, Any]]) -> Attributes:
    if len(given) > MAX_ATTRIBUTES:
        raise invalid_value_error(
            f"Number of message attributes [{len(given)}] exceeds the allowed "
            f"maximum [{MAX_ATTRIBUTES}]."
        )
    return {name: _parse_attribute(name, value) for name, value in given.items()}


def _parse_attribute(name: str, given: Mapping[str, Any]) -> UserAttribute:
    data_type = given["DataType"]
    if not _ATTRIBUTE_NAME.fullmatch(name):
        raise invalid_value_error(
            f"The message attribute name '{name}' is invalid. Attribute name can contain "
            "A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.) characters."
        )
    kind = data_type.split(".")[0]
    if kind not in ("String", "Number", "Binary"):
        raise invalid_value_error(
            f"The message attribute '{name}' has an invalid message attribute type, the "
            "set of supported type prefixes is Binary, Number, and String."
        )
    value = given.get("BinaryValue" if kind == "Binary" else "StringValue")
    if not value:
        raise invalid_value_error(
            f"Message (user) attribute '{name}' must contain a non-empty value of type "
            f"'{data_type}'."
        )
    if kind == "Binary":
        return UserAttribute(
            data_type, value.encode() if isinstance(value, str) else bytes(value)
        )
    return UserAttribute(data_type, value)
