"""The receipt of a delivery, and batch calls with many receipts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from holdfast.adapters.aws.errors import is_transient_code
from holdfast.adapters.aws.sqs.queue_client import QueueClient

CAP_SECONDS = 12 * 3600.0  # from the receive; SQS refuses to extend beyond it


class Receipt:
    """The receipt of one delivery. It is never printed and never serialised."""

    __slots__ = ("attributes", "body", "copied", "group", "handle", "lock", "settled", "sqs_id")

    def __init__(
        self,
        sqs_id: str,
        handle: str,
        body: str,
        group: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.sqs_id = sqs_id
        self.handle = handle  # the newest, because SQS may deliver a message twice
        self.body = body
        self.group = group
        self.attributes = attributes or {}  # the sender's own, for copies
        # An extension in progress must not overtake a nack, because it would hide the
        # message again for a complete lease.
        self.lock = Lock()
        self.settled = False
        self.copied = False  # whether the dead letters have a copy


def receipt_from_raw(raw: Mapping[str, Any]) -> Receipt:
    """Make the receipt of a message as ReceiveMessage returns it."""
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
    """Why one entry of a batch failed."""

    code: str
    transient: bool  # whether another try may succeed


def call_batch(
    client: QueueClient, operation: str, entries: Sequence[Mapping[str, Any]]
) -> list[EntryFailure | None]:
    """Call a batch operation with up to ten entries, and return their failures in order.

    The failure is None for an entry that succeeded.
    """
    numbered = [{"Id": str(number), **entry} for number, entry in enumerate(entries)]
    response = client.call_fail_fast(operation, Entries=numbered)
    done = {entry["Id"] for entry in response.get("Successful", ())}
    failed = {entry["Id"]: parse_failure(entry) for entry in response.get("Failed", ())}
    no_response = EntryFailure("NoAnswer", transient=True)
    return [
        None if (id := entry["Id"]) in done else failed.get(id, no_response)
        for entry in numbered
    ]


def parse_failure(entry: Mapping[str, Any]) -> EntryFailure:
    """Parse one of the `Failed` entries of a batch response."""
    code = str(entry.get("Code", "Unknown"))
    return EntryFailure(code, is_transient_code(code, bool(entry.get("SenderFault"))))


def set_visibility(
    client: QueueClient, receipts: Sequence[Receipt], seconds: int
) -> list[EntryFailure | None]:
    """Set the visibility timeout of up to ten messages; `call_batch` says what it returns."""
    entries = [
        {"ReceiptHandle": receipt.handle, "VisibilityTimeout": seconds} for receipt in receipts
    ]
    return call_batch(client, "change_message_visibility_batch", entries)


def delete_messages(
    client: QueueClient, receipts: Sequence[Receipt]
) -> list[EntryFailure | None]:
    """Delete up to ten messages; `call_batch` says what it returns."""
    entries = [{"ReceiptHandle": receipt.handle} for receipt in receipts]
    return call_batch(client, "delete_message_batch", entries)
