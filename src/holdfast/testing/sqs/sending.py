"""SendMessage, and the checks of SendMessageBatch."""

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from holdfast.testing.sqs.errors import (
    ServiceError,
    invalid_value_error,
    missing_parameter_error,
    out_of_range_error,
    read_number,
    sqs_error,
)
from holdfast.testing.sqs.message import (
    IdSource,
    StoredMessage,
    compute_md5,
    count_bytes,
    parse_attributes,
)
from holdfast.testing.sqs.queue import SimulatedQueue

MAX_BATCH_BYTES = 1_048_576

_NOT_ALLOWED = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FIFO_ID = re.compile(r"[!-~]{1,128}")
_WRONG_QUEUE_TYPE = "The request include parameter that is not valid for this queue type."

Entry = dict[str, Any]
Response = dict[str, Any]


def check_send_batch(queue: SimulatedQueue, entries: Sequence[Entry]) -> None:
    """Raise ServiceError for a batch that AWS refuses as a whole.

    It does so for a batch that is too large, and for ids that do not fit the queue's type.
    Other problems make single entries fail.
    """
    total = sum(
        count_bytes(
            entry["MessageBody"].encode(errors="replace").decode(),
            parse_attributes(entry.get("MessageAttributes")),
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


def send_message(ids: IdSource, queue: SimulatedQueue, entry: Entry) -> Response:
    """Handle SendMessage, or one entry of SendMessageBatch.

    The response to a duplicate has the id of the first message and its own checksum.
    """
    _check_ids(queue, entry, missing_parameter_error("MessageGroupId"))
    sent = _make_message(ids, queue, entry)
    stored = queue.add_once(sent)
    response: Response = {
        "MessageId": stored.message_id,
        "MD5OfMessageBody": compute_md5(sent.body),
    }
    if stored.sequence_number:
        response["SequenceNumber"] = stored.sequence_number
    return response


def _make_message(ids: IdSource, queue: SimulatedQueue, entry: Entry) -> StoredMessage:
    body = entry["MessageBody"]
    _check_body(body)
    attributes = parse_attributes(entry.get("MessageAttributes"))
    max_bytes = queue.settings.get_number("MaximumMessageSize")
    if count_bytes(body, attributes) > max_bytes:
        raise invalid_value_error(
            "One or more parameters are invalid. Reason: Message must be shorter "
            f"than {max_bytes} bytes."
        )
    system = parse_attributes(entry.get("MessageSystemAttributes"))
    return StoredMessage(
        message_id=ids.make_uuid(),
        body=body,
        attributes=attributes,
        sent_at=queue.now,
        sent_ms=queue.wall_ms,
        visible_at=queue.now + _choose_delay_seconds(queue, entry),
        trace_header=str(system.get("AWSTraceHeader", {}).get("StringValue", "")),
        group_id=entry.get("MessageGroupId") or "",
        deduplication_id=_choose_deduplication_id(queue, entry),
    )


def _check_ids(queue: SimulatedQueue, entry: Entry, no_group: ServiceError) -> None:
    for name in ("MessageGroupId", "MessageDeduplicationId"):
        if name in entry and not _FIFO_ID.fullmatch(entry[name]):
            reason = f"{name} can only include alphanumeric and punctuation characters."
            raise out_of_range_error(name, entry[name], f"{reason} 1 to 128 in length.")
    deduplication_id = entry.get("MessageDeduplicationId")
    if not queue.settings.is_fifo:
        if deduplication_id is not None:
            raise out_of_range_error(
                "MessageDeduplicationId", deduplication_id, _WRONG_QUEUE_TYPE
            )
        return  # a group id is allowed, because it makes a standard queue fair
    if "MessageGroupId" not in entry:
        raise no_group
    by_content = queue.settings.texts.get("ContentBasedDeduplication") == "true"
    if not by_content and deduplication_id is None:
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
    default = queue.settings.get_number("DelaySeconds")
    delay = read_number(entry, "DelaySeconds", default)
    if not queue.settings.is_fifo:
        return delay
    if entry.get("DelaySeconds"):
        raise out_of_range_error("DelaySeconds", delay, _WRONG_QUEUE_TYPE)
    return default


def _check_body(body: str) -> None:
    if not body:
        raise missing_parameter_error("MessageBody")
    if _NOT_ALLOWED.search(body):
        raise ServiceError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | "
            "#x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
        )
