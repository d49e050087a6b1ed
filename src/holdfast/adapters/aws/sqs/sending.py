"""Sending: one by one, or ten to a call, with what SQS asks of FIFO queues."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any

from holdfast.adapters.aws.errors import MESSAGE_REFUSED
from holdfast.adapters.aws.sqs.queue_client import BATCH, LARGEST_BYTES, QueueClient
from holdfast.adapters.aws.sqs.receipt import EntryFailure, failure_of
from holdfast.core.backoff import Backoff
from holdfast.core.clock import Clock
from holdfast.core.errors import MalformedMessage, MessageTooLarge, QueueUnavailable

MAX_DELAY_SECONDS = 900
ONE_GROUP = "holdfast"  # without `group_by` a FIFO queue keeps one order for all

_TRIES = 4
_AGAIN = Backoff(first_seconds=0.2, factor=2.0, max_seconds=5.0)
_LEGAL = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_NOT_XML = re.compile("[\ufffe\uffff]")  # JSON lets them pass unescaped; SQS does not


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message as SQS takes it."""

    id: str
    body: str
    size: int
    extra: Mapping[str, Any]


def outgoing_message(
    message_id: str, body: bytes, *, delay_seconds: float, fifo: bool, group: str | None
) -> OutgoingMessage:
    text = _NOT_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", body.decode())
    extra: dict[str, Any] = {}
    if fifo:
        extra["MessageGroupId"] = legal(group or ONE_GROUP)
        extra["MessageDeduplicationId"] = legal(message_id)
    elif delay_seconds > 0:
        extra["DelaySeconds"] = ceil(delay_seconds)
    return OutgoingMessage(message_id, text, len(text.encode()), extra)


def legal(text: str) -> str:
    """An id that SQS takes: the text itself where it can be."""
    if _LEGAL.fullmatch(text):
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


class MessageSender:
    def __init__(self, service: QueueClient, clock: Clock, random: Random) -> None:
        self._service, self._clock, self._random = service, clock, random

    def send(self, one: OutgoingMessage) -> None:
        self._service.send(one.id, one.size, MessageBody=one.body, **one.extra)

    def send_all(self, parcels: Sequence[OutgoingMessage]) -> None:
        """Each that fails for a reason that passes is tried again, by itself."""
        for batch in _batches(parcels):
            self._send_batch(batch)

    def _send_batch(self, batch: Sequence[OutgoingMessage]) -> None:
        for tries in range(1, _TRIES + 1):
            failed = self._try(batch)
            if not failed:
                return
            if tries == _TRIES or not all(failure.passing for _, failure in failed):
                raise _not_accepted(self._service, failed)
            self._clock.sleep(_AGAIN.delay(tries, self._random))
            batch = [one for one, _ in failed]

    def _try(
        self, batch: Sequence[OutgoingMessage]
    ) -> list[tuple[OutgoingMessage, EntryFailure]]:
        entries = [
            {"Id": str(number), "MessageBody": one.body, **one.extra}
            for number, one in enumerate(batch)
        ]
        answer = self._service.patiently("send_message_batch", Entries=entries)
        return [
            (batch[int(entry["Id"])], failure_of(entry)) for entry in answer.get("Failed", ())
        ]


def _not_accepted(
    service: QueueClient, failed: Sequence[tuple[OutgoingMessage, EntryFailure]]
) -> QueueUnavailable | MalformedMessage | MessageTooLarge:
    largest, failure = max(failed, key=lambda pair: pair[0].size)
    if failure.code in MESSAGE_REFUSED:
        refusal = service.refusal(largest.id, largest.size, failure.code)
        if isinstance(refusal, MessageTooLarge):
            return refusal
    ids = ", ".join(repr(one.id) for one, _ in failed[:3]) + (", …" if len(failed) > 3 else "")
    codes = ", ".join(sorted({failure.code for _, failure in failed}))
    text = f"{service}: {len(failed)} of the messages were not accepted ({codes}): {ids}"
    if all(failure.passing for _, failure in failed):
        return QueueUnavailable(text)
    return MalformedMessage(text)


def _batches(parcels: Sequence[OutgoingMessage]) -> Iterator[Sequence[OutgoingMessage]]:
    """By ten, and not larger together than one message may be."""
    batch: list[OutgoingMessage] = []
    size = 0
    for one in parcels:
        if batch and (len(batch) == BATCH or size + one.size > LARGEST_BYTES // 4):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.size
    if batch:
        yield batch
