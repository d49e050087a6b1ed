"""Send messages, one by one or ten to a call, with the ids that FIFO queues need."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any

from holdfast.adapters.aws.errors import MESSAGE_REFUSED
from holdfast.adapters.aws.sqs.queue_client import (
    MAX_BATCH_ENTRIES,
    MAX_MESSAGE_BYTES,
    QueueClient,
)
from holdfast.adapters.aws.sqs.receipt import EntryFailure, parse_failure
from holdfast.core.backoff import Backoff
from holdfast.core.clock import Clock
from holdfast.core.errors import MalformedMessage, MessageTooLarge, QueueUnavailable

MAX_DELAY_SECONDS = 900
DEFAULT_GROUP = "holdfast"  # without `group_by` a FIFO queue keeps one order for all

_MAX_TRIES = 4
_BACKOFF = Backoff(first_seconds=0.2, factor=2.0, max_seconds=5.0)
_SQS_ID = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_NOT_XML = re.compile("[\ufffe\uffff]")  # valid unescaped in JSON, but refused by SQS


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message in the form that SQS accepts."""

    id: str
    body: str
    size: int
    extra: Mapping[str, Any]


def make_outgoing_message(
    message_id: str, body: bytes, *, delay_seconds: float, fifo: bool, group: str | None
) -> OutgoingMessage:
    """Make the message to send: encode characters that SQS refuses, and add its ids."""
    text = _NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", body.decode())
    extra: dict[str, Any] = {}
    if fifo:
        extra["MessageGroupId"] = to_sqs_id(group or DEFAULT_GROUP)
        extra["MessageDeduplicationId"] = to_sqs_id(message_id)
    elif delay_seconds > 0:
        extra["DelaySeconds"] = ceil(delay_seconds)
    return OutgoingMessage(message_id, text, len(text.encode()), extra)


def to_sqs_id(text: str) -> str:
    """Return an id that SQS accepts: the text itself, or its hash if SQS would refuse it."""
    if _SQS_ID.fullmatch(text):
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


class MessageSender:
    """Sends messages to one queue, and tries again what failed for a transient reason."""

    def __init__(self, client: QueueClient, clock: Clock, random: Random) -> None:
        self._client, self._clock, self._random = client, clock, random

    def send(self, message: OutgoingMessage) -> None:
        """Send one message."""
        self._client.send(message.id, message.size, MessageBody=message.body, **message.extra)

    def send_all(self, messages: Sequence[OutgoingMessage]) -> None:
        """Send all messages in batches. A message that failed transiently is tried again.

        Raises QueueUnavailable, MalformedMessage or MessageTooLarge for a batch with
        messages that SQS did not accept. The batches before it were accepted.
        """
        for batch in _split_by_size(messages):
            self._send_batch(batch)

    def _send_batch(self, batch: Sequence[OutgoingMessage]) -> None:
        for tries in range(1, _MAX_TRIES + 1):
            failed = self._try_batch(batch)
            if not failed:
                return
            if tries == _MAX_TRIES or not all(failure.transient for _, failure in failed):
                raise _make_send_error(self._client, failed)
            self._clock.sleep(_BACKOFF.delay(tries, self._random))
            batch = [message for message, _ in failed]

    def _try_batch(
        self, batch: Sequence[OutgoingMessage]
    ) -> list[tuple[OutgoingMessage, EntryFailure]]:
        entries = [
            {"Id": str(number), "MessageBody": message.body, **message.extra}
            for number, message in enumerate(batch)
        ]
        response = self._client.call("send_message_batch", Entries=entries)
        return [
            (batch[int(entry["Id"])], parse_failure(entry))
            for entry in response.get("Failed", ())
        ]


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
