"""What a received message is held by, and calls about many of them at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from holdfast.adapters.aws.errors import passes_by
from holdfast.adapters.aws.sqs.queue_client import QueueClient

CAP_SECONDS = 12 * 3600.0  # from the receive; SQS refuses to extend beyond it


class Receipt:
    """The receipt of one delivery. Never printed, never serialised."""

    __slots__ = ("attributes", "body", "closed", "group", "handle", "kept", "lock", "sqs_id")

    def __init__(
        self,
        sqs_id: str,
        handle: str,
        body: str,
        group: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.sqs_id = sqs_id
        self.handle = handle  # the newest: SQS may deliver a message twice
        self.body = body
        self.group = group
        self.attributes = attributes or {}  # somebody's own, for copies
        # An extension that is under way must not overtake a nack: it would hide the
        # message again for a whole lease.
        self.lock = Lock()
        self.closed = False
        self.kept = False  # as a dead letter


def received(raw: Mapping[str, Any]) -> Receipt:
    attributes = raw.get("Attributes", {})
    return Receipt(
        str(raw["MessageId"]),
        str(raw["ReceiptHandle"]),
        str(raw.get("Body", "")),
        attributes.get("MessageGroupId"),
        raw.get("MessageAttributes"),
    )


@dataclass(frozen=True, slots=True)
class EntryFailure:
    """Why one entry of a batch was not done."""

    code: str
    passing: bool  # worth another try


def batch(
    service: QueueClient, operation: str, entries: Sequence[Mapping[str, Any]]
) -> list[EntryFailure | None]:
    """Up to ten entries in one call; each entry's own result, in order."""
    numbered = [{"Id": str(number), **entry} for number, entry in enumerate(entries)]
    answer = service.soon(operation, Entries=numbered)
    done = {entry["Id"] for entry in answer.get("Successful", ())}
    failed = {entry["Id"]: failure_of(entry) for entry in answer.get("Failed", ())}
    silent = EntryFailure("NoAnswer", passing=True)
    return [
        None if (id := entry["Id"]) in done else failed.get(id, silent) for entry in numbered
    ]


def failure_of(entry: Mapping[str, Any]) -> EntryFailure:
    code = str(entry.get("Code", "Unknown"))
    return EntryFailure(code, passes_by(code, bool(entry.get("SenderFault"))))


def set_visibility(
    service: QueueClient, holds: Sequence[Receipt], seconds: int
) -> list[EntryFailure | None]:
    """For up to ten."""
    entries = [{"ReceiptHandle": hold.handle, "VisibilityTimeout": seconds} for hold in holds]
    return batch(service, "change_message_visibility_batch", entries)


def delete(service: QueueClient, holds: Sequence[Receipt]) -> list[EntryFailure | None]:
    """For up to ten."""
    entries = [{"ReceiptHandle": hold.handle} for hold in holds]
    return batch(service, "delete_message_batch", entries)
