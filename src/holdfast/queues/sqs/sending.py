"""Send messages, one by one or ten to a call, with the ids that FIFO queues need.

Copies of a message are sent as well: to the dead letters, back from them, or to the queue's
end.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from random import Random
from typing import Any, Generic, NamedTuple

from holdfast.aws.errors import MESSAGE_REFUSED
from holdfast.errors import (
    ConfigError,
    MalformedMessage,
    MessageTooLarge,
    QueueUnavailable,
)
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import Clock
from holdfast.queue.message import Headers, M, MessageCodec, get_headers
from holdfast.queues.sqs.queue_client import (
    MAX_BATCH_ENTRIES,
    MAX_MESSAGE_BYTES,
    EntryFailure,
    QueueClient,
    Receipt,
)

MAX_DELAY_SECONDS = 900
DEFAULT_GROUP = "holdfast"  # without `group_by` a FIFO queue keeps one order for all

# The attributes of a copy.
REASON, DETAIL = "HoldfastReason", "HoldfastDetail"
ATTEMPTS, SOURCE = "HoldfastAttempts", "HoldfastSource"
_ASSIGNED_ID = "HoldfastId"  # if the body has none; SQS gives the copy another

_HEADER_NAMES = ("traceparent", "tracestate")
# These two are rarely needed, so `re` compiles them on first use.
_X_RAY = (
    r"Root=1-(?P<time>[0-9a-f]{8})-(?P<random>[0-9a-f]{24});"
    r"Parent=(?P<parent>[0-9a-f]{16})(;Sampled=(?P<sampled>[01]))?"
)
_HOLDFAST_NAMES = frozenset({REASON, DETAIL, ATTEMPTS, SOURCE, _ASSIGNED_ID})
_MAX_ATTRIBUTES = 10  # attributes of one message
_VALUES = ("DataType", "StringValue", "BinaryValue")
_NOT_TEXT = "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_MAX_REASON_CHARS, _MAX_DETAIL_CHARS = 1_000, 8_000

Attributes = Mapping[str, Mapping[str, Any]]

_MAX_TRIES = 4
_BACKOFF = Backoff(first_seconds=0.2, factor=2.0, max_seconds=5.0)
_SQS_ID = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_NOT_XML = re.compile("[\ufffe\uffff]")  # valid unescaped in JSON, but refused by SQS


class OutgoingMessage(NamedTuple):
    """One message in the form that SQS accepts."""

    id: str
    body: str
    size: int
    extra: Mapping[str, Any]


def to_sqs_id(text: str) -> str:
    """Return an id that SQS accepts: the text itself, or its hash if SQS would refuse it."""
    if _SQS_ID.fullmatch(text):
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def check_group(model: type[M], group_by: str | None, *, fifo: bool) -> str | None:
    """Return the field that groups messages. Raises ConfigError if it cannot work."""
    if group_by is None:
        return None
    if not fifo:
        raise ConfigError(f"group_by={group_by!r}: only FIFO queues have groups")
    if group_by not in model.model_fields and model.model_config.get("extra") != "allow":
        raise ConfigError(f"group_by={group_by!r}: {model.__name__} has no such field")
    return group_by


class MessageSender(Generic[M]):
    """Sends messages to one queue, and tries again what failed for a transient reason."""

    def __init__(
        self,
        client: QueueClient,
        codec: MessageCodec[M],
        group_by: str | None,
        clock: Clock,
        random: Random,
    ) -> None:
        self._client, self._codec, self._group_by = client, codec, group_by
        self._clock, self._random = clock, random
        self._fifo = client.address.fifo

    def send(self, message: M, delay_seconds: float) -> None:
        """Send one message."""
        outgoing = self._encode(message, delay_seconds)
        self._client.send(
            outgoing.id, outgoing.size, MessageBody=outgoing.body, **outgoing.extra
        )

    def send_all(self, messages: Iterable[M], delay_seconds: float) -> list[str]:
        """Send all messages in batches and return their ids.

        A message that failed transiently is tried again. Raises QueueUnavailable,
        MalformedMessage or MessageTooLarge for a batch with messages that SQS did not
        accept. The batches before it were accepted.
        """
        outgoing = [self._encode(message, delay_seconds) for message in messages]
        for batch in _split_by_size(outgoing):
            self._send_batch(batch)
        return [message.id for message in outgoing]

    def _encode(self, message: M, delay_seconds: float) -> OutgoingMessage:
        """Encode the message without characters that SQS refuses, and add its ids."""
        extra = self._make_arguments(message, delay_seconds)
        body = self._codec.encode(message).decode()
        text = _NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", body)
        size = len(text.encode())
        max_bytes = self._client.check_size(message.id, size)
        if (headers := get_headers(message)) is not None:
            texts = {
                name: {"DataType": "String", "StringValue": value}
                for name, value in headers.items()
            }
            attributes = _select_fitting(texts, max_bytes - size)
            extra["MessageAttributes"] = attributes
            size += _count_bytes(attributes)
        return OutgoingMessage(message.id, text, size, extra)

    def _make_arguments(self, message: M, delay_seconds: float) -> dict[str, Any]:
        if not delay_seconds <= MAX_DELAY_SECONDS:  # also for NaN
            raise ValueError(
                f"delay_seconds must be at most {MAX_DELAY_SECONDS} on SQS, not "
                f"{delay_seconds}: for a longer delay, let a schedule push it"
            )
        if not self._fifo:
            return {"DelaySeconds": ceil(delay_seconds)} if delay_seconds > 0 else {}
        if delay_seconds > 0:
            raise ValueError(
                "SQS FIFO queues have no delay per message: set the queue's own DelaySeconds"
            )
        group = str(getattr(message, self._group_by)) if self._group_by else ""
        return {
            "MessageGroupId": to_sqs_id(group or DEFAULT_GROUP),
            "MessageDeduplicationId": to_sqs_id(message.id),
        }

    def _send_batch(self, batch: Sequence[OutgoingMessage]) -> None:
        for tries in range(1, _MAX_TRIES + 1):
            entries = [{"MessageBody": message.body, **message.extra} for message in batch]
            failures = self._client.call_batch("send_message_batch", entries)
            failed = [
                (message, failure)
                for message, failure in zip(batch, failures, strict=True)
                if failure is not None
            ]
            if not failed:
                return
            if tries == _MAX_TRIES or not all(failure.transient for _, failure in failed):
                raise _make_send_error(self._client, failed)
            self._clock.sleep(_BACKOFF.delay(tries, self._random))
            batch = [message for message, _ in failed]


def read_headers(receipt: Receipt) -> Headers | None:
    """Return the trace context of a message: W3C's attributes, or else that of X-Ray."""
    headers = {
        name: str(receipt.attributes[name].get("StringValue", ""))
        for name in _HEADER_NAMES
        if name in receipt.attributes
    }
    if not headers and (found := re.search(_X_RAY, receipt.system.get("AWSTraceHeader", ""))):
        flags = "01" if found["sampled"] == "1" else "00"
        trace = f"{found['time']}{found['random']}"
        headers = {"traceparent": f"00-{trace}-{found['parent']}-{flags}"}
    return headers or None


def _make_send_error(
    client: QueueClient, failed: Sequence[tuple[OutgoingMessage, EntryFailure]]
) -> QueueUnavailable | MalformedMessage | MessageTooLarge:
    largest, failure = max(failed, key=lambda pair: pair[0].size)
    if failure.code in MESSAGE_REFUSED:
        refusal = client.make_refusal(largest.id, largest.size, failure.code)
        if isinstance(refusal, MessageTooLarge):
            return refusal
    ids = ", ".join(repr(message.id) for message, _ in failed[:3])
    ids += ", …" if len(failed) > 3 else ""
    codes = ", ".join(sorted({failure.code for _, failure in failed}))
    text = f"{client}: {len(failed)} of the messages were not accepted ({codes}): {ids}"
    if all(failure.transient for _, failure in failed):
        return QueueUnavailable(text)
    return MalformedMessage(text)


def _split_by_size(messages: Sequence[OutgoingMessage]) -> Iterator[Sequence[OutgoingMessage]]:
    """Split into batches of ten at most, and of a total size that SQS accepts."""
    batch: list[OutgoingMessage] = []
    size = 0
    for message in messages:
        if batch and (
            len(batch) == MAX_BATCH_ENTRIES or size + message.size > MAX_MESSAGE_BYTES // 4
        ):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += message.size
    if batch:
        yield batch


# -- copies


def send_copy(
    queue: QueueClient, receipt: Receipt, notes: Attributes | None = None, **extra: Any
) -> None:
    """Send the message as a new one, with `notes` instead of the notes of an earlier copy.

    A message whose body has no id keeps the one that it had. The copy carries as many notes as
    the queue accepts with this body. Raises MessageTooLarge if the queue does not accept the
    body. Without notes the sender's own attributes must fit as well; otherwise the copy would
    have less than the original, which is safe where it is.
    """
    sender_attributes = _get_sender_attributes(receipt)
    body_bytes = len(receipt.body.encode("utf-8", "surrogatepass"))
    min_bytes = body_bytes + (0 if notes else _count_bytes(sender_attributes))
    room = queue.check_size(receipt.sqs_id, min_bytes) - body_bytes
    if get_message_id(receipt) == (assigned_id := get_assigned_id(receipt)):
        value = {"DataType": "String", "StringValue": assigned_id}
        sender_attributes[_ASSIGNED_ID] = value  # last, so no attribute gives way to it
    notes = dict(notes or {})
    detail = {DETAIL: notes.pop(DETAIL)} if DETAIL in notes else {}
    attributes = _select_fitting({**notes, **sender_attributes, **detail}, room)
    queue.send(
        receipt.sqs_id,
        body_bytes + _count_bytes(attributes),
        MessageBody=receipt.body,
        MessageAttributes=attributes,
        **_make_fifo_ids(queue, receipt),
        **extra,
    )


def get_message_id(receipt: Receipt) -> str:
    """Return the id in the message's body, or the assigned one if the body has none."""
    own_id = (parse_body(receipt.body) or {}).get("id")
    return own_id if isinstance(own_id, str) else get_assigned_id(receipt)


def get_assigned_id(receipt: Receipt) -> str:
    """Return the id of a message whose body has none: that of SQS before it was copied."""
    kept_id = str(receipt.attributes.get(_ASSIGNED_ID, {}).get("StringValue", ""))
    return kept_id if _SQS_ID.fullmatch(kept_id) else receipt.sqs_id


def parse_body(body: str) -> dict[str, Any] | None:
    """Return the JSON object of a body, or None if it is none."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


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
    clean = re.sub(_NOT_TEXT, "?", text)[:max_chars] or "(none)"
    return {"DataType": "String", "StringValue": clean}


def _get_sender_attributes(receipt: Receipt) -> dict[str, Any]:
    return {
        name: {key: value[key] for key in _VALUES if key in value}
        for name, value in receipt.attributes.items()
        if name not in _HOLDFAST_NAMES
    }


def _select_fitting(attributes: Attributes, room: int) -> dict[str, Any]:
    """Select the attributes that fit into `room` bytes, the first ones first.

    A reason or a detail is shortened to the room that is left.
    """
    fitting: dict[str, Any] = {}
    for name, value in attributes.items():
        if name in (REASON, DETAIL):
            left = max(0, room - _count_bytes({name: {**value, "StringValue": ""}}))
            text = str(value["StringValue"]).encode()[:left].decode(errors="ignore")
            value = {**value, "StringValue": text}
        size = _count_bytes({name: value})
        if len(fitting) < _MAX_ATTRIBUTES and size <= room and value.get("StringValue") != "":
            fitting[name] = value
            room -= size
    return fitting


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
