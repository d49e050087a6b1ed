"""Dead letters: another SQS queue, that of the redrive policy if there is one.

    bury       send a copy with its reason there, then delete: a crash in between leaves
               two, never none
    look       receive them all, then make them visible again: SQS cannot be looked into
    redrive    SQS moves them itself where the policy lets it, else send back, then delete

What the redrive policy moved by itself carries no reason: SQS knows none. Several queues
may share one for their dead letters; each sees and moves only its own.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.adapters.aws.errors import DENIED, NO_QUEUE, code_of
from holdfast.adapters.aws.sqs.address import QueueAddress, parse
from holdfast.adapters.aws.sqs.queue_client import (
    BATCH,
    OLDER_LARGEST_BYTES,
    QueueClient,
    batches,
)
from holdfast.adapters.aws.sqs.receipt import Receipt, delete, received, set_visibility
from holdfast.adapters.aws.sqs.republish import (
    ATTEMPTS,
    DETAIL,
    REASON,
    SOURCE,
    send_copy,
    why_dead,
)
from holdfast.core.clock import Clock, utc
from holdfast.core.errors import ConfigError, QueueUnavailable
from holdfast.core.queue.manager import MessageInfo, MessageState, PastAttempt, Progress

_LOOK_SECONDS = 30  # how long a look may take before what was seen is visible again
_MOVE_SECONDS = 600.0


class SQSDeadLetters:
    def __init__(self, source: QueueClient, asked_for: str | None, clock: Clock) -> None:
        self._source, self._asked_for, self._clock = source, asked_for, clock
        self._found: QueueClient | None = None

    # -- where

    def place(self) -> QueueClient | None:
        """The queue they are in; None when there is none yet."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def _find(self) -> QueueClient | None:
        if self._asked_for is not None:
            return self._source.beside(parse(self._asked_for))
        if (arn := self._source.facts.dead_letter_arn) is not None:
            *_, account, name = arn.split(":")
            answer = self._source.about(
                "get_queue_url", QueueName=name, QueueOwnerAWSAccountId=account
            )
            return self._source.beside(QueueAddress(name, answer["QueueUrl"]))
        ours = self._source.beside(QueueAddress(self._own_name()))
        try:
            ours.url  # noqa: B018  # asks
        except ConfigError as error:
            if code_of(error.__cause__ or error) in NO_QUEUE:
                return None
            raise
        return ours

    def _own_name(self) -> str:
        """Where they go without a redrive policy: a queue of our own making."""
        stem, dot, fifo = self._source.address.name.partition(".")
        return f"{stem}-dead{dot}{fifo}"

    def _made(self) -> QueueClient:
        if (place := self.place()) is not None:
            return place
        name = self._own_name()
        kind = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        fourteen_days = {"MessageRetentionPeriod": str(14 * 86_400)}
        answer = self._source.about(
            "create_queue", QueueName=name, Attributes=kind | fourteen_days | self._own_size()
        )
        self._found = self._source.beside(QueueAddress(name, answer["QueueUrl"]))
        return self._found

    def _own_size(self) -> dict[str, str]:
        """The source's, where a server's default may be less: all must fit."""
        size = self._source.facts.max_bytes
        return {"MaximumMessageSize": str(size)} if size > OLDER_LARGEST_BYTES else {}

    # -- burying

    def keep(self, hold: Receipt, reason: str, detail: str | None, attempts: int) -> None:
        """Send a copy with its reason. The caller deletes the original afterwards.

        Raises MessageTooLarge when the queue for dead letters does not take its body.
        """
        notes = why_dead(self._source.facts.arn, reason, detail, attempts)
        send_copy(self._made(), hold, notes)

    # -- for people

    def count(self) -> int:
        if (place := self.place()) is None:
            return 0
        names = (
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesDelayed",
            "ApproximateNumberOfMessagesNotVisible",
        )
        found = place.attributes(*names)
        return sum(int(found.get(name, 0)) for name in names)

    def views(self, limit: int) -> list[MessageInfo]:
        with self._looking(limit) as seen:
            return [_view(place, raw) for place, raw in seen]

    def drop(self, message_id: str) -> int:
        with self._looking(None) as seen:
            ours = [(place, received(raw)) for place, raw in seen if _id(raw) == message_id]
            for place, hold in ours:
                _delete(place, [hold])
        return len(ours)

    def redrive(self, message_id: str | None, on_progress: Progress) -> int:
        place = self.place()
        if place is None:
            return 0
        if message_id is None and self._are_all_ours(place):
            moved = self._let_sqs_move(place, on_progress)
            if moved is not None:
                return moved
        with self._looking(None) as seen:
            ours = [raw for _, raw in seen if message_id in (None, _id(raw))]
            for raw in ours:
                self._send_back(place, received(raw))
                on_progress(1)
        return len(ours)

    def _send_back(self, place: QueueClient, hold: Receipt) -> None:
        send_copy(self._source, hold)
        _delete(place, [hold])

    def _are_all_ours(self, place: QueueClient) -> bool:
        """Is it the redrive policy's, and of no other queue?"""
        if self._source.facts.dead_letter_arn != place.facts.arn:
            return False
        try:
            answer = place.patiently("list_dead_letter_source_queues")
        except (ConfigError, QueueUnavailable) as error:
            if code_of(error.__cause__ or error) in _CANNOT_MOVE | DENIED:
                return False
            raise
        return [url.rpartition("/")[2] for url in answer["queueUrls"]] == [
            self._source.address.name
        ]

    def _let_sqs_move(self, place: QueueClient, on_progress: Progress) -> int | None:
        """How many it moved; None where it cannot.

        The destination is named: of what we sent there SQS does not know where it came from.
        """
        arn = place.facts.arn
        try:
            place.about(
                "start_message_move_task", SourceArn=arn, DestinationArn=self._source.facts.arn
            )
        except (ConfigError, QueueUnavailable) as error:
            if code_of(error.__cause__ or error) in _CANNOT_MOVE:
                return None
            raise
        give_up_at = self._clock.monotonic() + _MOVE_SECONDS
        reported = 0
        while True:
            [task] = place.about("list_message_move_tasks", SourceArn=arn)["Results"][:1]
            moved = int(task.get("ApproximateNumberOfMessagesMoved", 0))
            on_progress(moved - reported)
            reported = moved
            if task["Status"] == "FAILED":
                raise QueueUnavailable(f"{place}: {moved} moved, then: {task['FailureReason']}")
            if task["Status"] not in ("RUNNING", "CANCELLING"):
                return moved
            if self._clock.monotonic() >= give_up_at:
                return moved  # SQS goes on by itself
            self._clock.sleep(0.5)

    # -- looking: nothing may stay hidden because somebody looked

    @contextmanager
    def _looking(
        self, limit: int | None
    ) -> Iterator[list[tuple[QueueClient, Mapping[str, Any]]]]:
        place = self.place()
        seen = [] if place is None else _receive_all(place, limit)
        try:
            ours = [raw for raw in seen if self._is_ours(raw)]
            yield [(place, raw) for raw in ours] if place is not None else []
        finally:
            if place is not None:
                for ten in batches([received(raw) for raw in seen]):
                    set_visibility(place, ten, 0)

    def _is_ours(self, raw: Mapping[str, Any]) -> bool:
        said = raw.get("MessageAttributes", {}).get(SOURCE, {}).get("StringValue")
        source = said or raw.get("Attributes", {}).get("DeadLetterQueueSourceArn")
        return source in (None, self._source.facts.arn)


# A server that cannot; AWS itself can.
_CANNOT_MOVE = frozenset(
    {
        "AWS.SimpleQueueService.UnsupportedOperation",
        "InvalidAction",
        "UnknownOperation",
        "UnsupportedOperation",
        "501",
    }
)


def _receive_all(place: QueueClient, limit: int | None) -> list[Mapping[str, Any]]:
    """In the order they came. Two empty answers in a row: SQS asks a part of its servers."""
    seen: dict[str, Mapping[str, Any]] = {}
    empty = 0
    while empty < 2 and (limit is None or len(seen) < limit):
        answer = place.patiently(
            "receive_message",
            MaxNumberOfMessages=min(BATCH, BATCH if limit is None else limit - len(seen)),
            VisibilityTimeout=_LOOK_SECONDS,
            WaitTimeSeconds=0,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        batch = answer.get("Messages", [])
        empty = 0 if batch else empty + 1
        seen |= {raw["MessageId"]: raw for raw in batch}
    return sorted(seen.values(), key=lambda raw: int(raw["Attributes"].get("SentTimestamp", 0)))


def _delete(place: QueueClient, holds: Sequence[Receipt]) -> None:
    for failure in delete(place, holds):
        if failure is not None:
            raise QueueUnavailable(f"{place}: a dead letter was not removed ({failure.code})")


def _view(place: QueueClient, raw: Mapping[str, Any]) -> MessageInfo:
    attributes = raw.get("Attributes", {})
    said = {
        name: value.get("StringValue", "")
        for name, value in raw.get("MessageAttributes", {}).items()
    }
    receives = int(attributes.get("ApproximateReceiveCount", 1)) - 1
    attempts = int(said[ATTEMPTS]) if said.get(ATTEMPTS, "").isdecimal() else receives
    moved = "moved here by the queue's redrive policy: received too often, never completed"
    reason = said.get(REASON) or moved
    at = utc(int(attributes.get("SentTimestamp", 0)) / 1000)
    return MessageInfo(
        id=_id(raw),
        key=str(raw["MessageId"]),
        state=MessageState.FAILED,
        attempts=attempts,
        fence=attempts,
        where=f"sqs:{place.address.name}/{raw['MessageId']}",
        reason=reason,
        past=[PastAttempt(attempts, "dead-lettered", at, "", reason, said.get(DETAIL))],
        body=_plain(str(raw.get("Body", ""))),
    )


def _id(raw: Mapping[str, Any]) -> str:
    """The message's own id, or SQS's where the body has none."""
    body = _plain(str(raw.get("Body", "")))
    found = body.get("id") if body else None
    return found if isinstance(found, str) else str(raw["MessageId"])


def _plain(body: str) -> dict[str, Any] | None:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
