"""SendMessage, ReceiveMessage, whose long polls follow the clock, and the calls with receipts.

A receipt becomes stale when its message becomes visible again or is received again. AWS does
not promise what happens with a stale receipt. All three of these happen:

    strict      the call is refused
    ignored     the call succeeds without an effect
    effective   the call still deletes or hides the message, even if another receiver has it

FIFO queues always refuse.
"""

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from threading import Event
from typing import Any, Literal

from holdfast.lease.clock import Clock
from holdfast.testing.sqs.errors import (
    EXPIRED_FIFO_HANDLE,
    INVALID_HANDLE,
    MESSAGE_GONE,
    NOT_IN_FLIGHT,
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
from holdfast.testing.sqs.registry import QueueRegistry, Response

MAX_VISIBILITY_SECONDS = 43_200
MAX_BATCH_BYTES = 1_048_576

_NOT_ALLOWED = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FIFO_ID = re.compile(r"[!-~]{1,128}")
_WRONG_QUEUE_TYPE = "The request include parameter that is not valid for this queue type."

Entry = dict[str, Any]
StaleHandles = Literal["strict", "ignored", "effective"]


# -- sending


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


# -- receiving


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """The parameters of a receive, with the queue's defaults filled in."""

    limit: int
    visibility_seconds: int
    wait_seconds: int
    system_attributes: tuple[str, ...]
    own_attributes: tuple[str, ...]


class ReceiveCalls:
    """The receive operation. It takes the service's lock itself, and not while it waits."""

    def __init__(
        self,
        registry: QueueRegistry,
        clock: Clock,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._registry, self._clock, self._lock = registry, clock, lock

    def receive(self, params: dict[str, Any]) -> Response:
        """Handle ReceiveMessage."""
        with self._lock:
            request = _parse_request(self._registry.find(params["QueueUrl"]), params)
        deadline = self._clock.monotonic() + request.wait_seconds
        while True:
            waiter = Event()
            with self._lock:
                now = self._clock.monotonic()
                # Looked up each time, because it may be deleted during the wait.
                queue = self._registry.find(params["QueueUrl"])
                if (messages := self._take(queue, request)) or now >= deadline:
                    system, own = request.system_attributes, request.own_attributes
                    selected = [message.to_response(system, own) for message in messages]
                    # AWS omits a list that would be empty.
                    return {"Messages": selected} if selected else {}
                queue.waiters.add(waiter)
                next_look = min(deadline, queue.next_change_at())
            self._wait(queue, waiter, next_look - now)

    def _wait(self, queue: SimulatedQueue, waiter: Event, seconds: float) -> None:
        try:
            self._clock.wait(waiter, seconds)
        finally:
            with self._lock:
                queue.waiters.discard(waiter)

    def _take(self, queue: SimulatedQueue, request: ReceiveRequest) -> list[StoredMessage]:
        redrive = queue.settings.redrive
        dead_letters = self._registry.find_by_arn(redrive.target_arn) if redrive else None
        delivered, exhausted = queue.take(
            request.limit,
            request.visibility_seconds,
            redrive.max_receives if redrive and dead_letters else float("inf"),
        )
        for message in exhausted:
            assert dead_letters is not None
            dead_letters.add(_to_dead_letter(message, queue))
        return delivered


def _to_dead_letter(message: StoredMessage, source: SimulatedQueue) -> StoredMessage:
    """Return the message as a dead letter, with the same id and count, visible at once.

    Its age continues, except in a FIFO queue, where AWS restarts it.
    """
    dead = replace(message, visible_at=source.now, source_arn=source.arn, handle="")
    if source.settings.is_fifo:
        return replace(dead, sent_at=source.now, sent_ms=source.wall_ms)
    return dead


def _parse_request(queue: SimulatedQueue, params: dict[str, Any]) -> ReceiveRequest:
    names = [
        *(params.get("AttributeNames") or ()),
        *(params.get("MessageSystemAttributeNames") or ()),
    ]
    get_default = queue.settings.get_number
    return ReceiveRequest(
        limit=read_number(params, "MaxNumberOfMessages", 1),
        visibility_seconds=read_number(
            params, "VisibilityTimeout", get_default("VisibilityTimeout")
        ),
        wait_seconds=read_number(
            params, "WaitTimeSeconds", get_default("ReceiveMessageWaitTimeSeconds")
        ),
        system_attributes=tuple(names),
        own_attributes=tuple(params.get("MessageAttributeNames") or ()),
    )


class ReceiptCalls:
    """The operations that take a receipt. The caller must hold the service's lock."""

    def __init__(self, stale_handles: StaleHandles) -> None:
        self._stale_handles = stale_handles

    def delete(self, queue: SimulatedQueue, entry: dict[str, Any]) -> Response:
        """Handle DeleteMessage, or one entry of DeleteMessageBatch."""
        number, message = _find_message(queue, entry)
        # Deleting a message that is gone already succeeds.
        if message is not None and self._has_effect(queue, message, entry, INVALID_HANDLE):
            queue.delete(number)
        return {}

    def change(self, queue: SimulatedQueue, entry: dict[str, Any]) -> Response:
        """Handle ChangeMessageVisibility, or one entry of its batch.

        More than twelve hours in all are refused.
        """
        default = queue.settings.get_number("VisibilityTimeout")
        seconds = read_number(entry, "VisibilityTimeout", default)
        number, message = _find_message(queue, entry)
        if message is None:
            raise ServiceError(*MESSAGE_GONE)
        is_latest = message.handle == entry["ReceiptHandle"]
        refusal = NOT_IN_FLIGHT if is_latest else INVALID_HANDLE
        if self._has_effect(queue, message, entry, refusal):
            until = queue.now + seconds
            if until - message.received_at > MAX_VISIBILITY_SECONDS:
                raise out_of_range_error(
                    "VisibilityTimeout",
                    seconds,
                    "Total VisibilityTimeout for the message is beyond the limit "
                    f"[{MAX_VISIBILITY_SECONDS} seconds]",
                )
            queue.hide(number, until)
        return {}

    def _has_effect(
        self,
        queue: SimulatedQueue,
        message: StoredMessage,
        entry: dict[str, Any],
        refusal: tuple[str, str],
    ) -> bool:
        """Return whether this receipt has an effect. Raises if it is stale and refused."""
        if message.visible_at > queue.now and message.handle == entry["ReceiptHandle"]:
            return True
        if queue.settings.is_fifo:
            raise ServiceError(*EXPIRED_FIFO_HANDLE)
        if self._stale_handles == "strict":
            raise ServiceError(*refusal)
        return self._stale_handles == "effective"


def _find_message(
    queue: SimulatedQueue, entry: dict[str, Any]
) -> tuple[int, StoredMessage | None]:
    """Return the message of a receipt with its number, or None if it is gone."""
    if (number := queue.receipts.get(entry["ReceiptHandle"])) is None:
        raise ServiceError(*INVALID_HANDLE)
    return number, queue.get(number)
