"""Calls to one SQS queue: its clients, its URL, its attributes and its receipts."""

import json
from collections.abc import Mapping, Sequence
from hashlib import md5
from threading import Lock
from typing import Any, NamedTuple

from holdfast.aws import clients
from holdfast.aws.checked_call import call_checked
from holdfast.aws.errors import (
    DENIED,
    MESSAGE_REFUSED,
    get_cause_code,
    get_client_errors,
    is_transient_code,
    translate_error,
)
from holdfast.errors import (
    ConfigError,
    MalformedMessage,
    MessageTooLarge,
    QueueUnavailable,
)
from holdfast.lease import after_fork
from holdfast.queues.sqs.address import QueueAddress

MAX_BATCH_ENTRIES = 10  # in every batch call
MAX_MESSAGE_BYTES = 1_048_576
OLDER_MAX_MESSAGE_BYTES = 262_144  # of queues made before SQS allowed more

RawMessage = Mapping[str, Any]
"""A message as ReceiveMessage returns it."""


class Receipt:
    """The receipt of one delivery. It is never printed and never serialised."""

    __slots__ = (
        "attributes",
        "body",
        "copied",
        "handle",
        "lock",
        "settled",
        "sqs_id",
        "system",
    )

    def __init__(self, raw: RawMessage) -> None:
        self.sqs_id = str(raw["MessageId"])
        self.handle = str(raw["ReceiptHandle"])  # the newest: SQS may deliver it twice
        self.body = str(raw.get("Body", ""))
        self.attributes: Mapping[str, Any] = raw.get("MessageAttributes") or {}  # the sender's
        self.system: Mapping[str, str] = raw.get("Attributes") or {}
        # An extension in progress must not overtake a nack, because it would hide the
        # message again for a complete lease.
        self.lock = Lock()
        self.settled = False
        self.copied = False  # whether the dead letters have a copy

    @property
    def receives(self) -> int:
        """How often SQS has delivered the message."""
        return int(self.system.get("ApproximateReceiveCount", 1))


class EntryFailure(NamedTuple):
    """Why one entry of a batch failed."""

    code: str
    transient: bool  # whether another try may succeed


_NO_RESPONSE = EntryFailure("NoAnswer", transient=True)
_OTHER_BODY = EntryFailure("MD5OfMessageBody is that of another body", transient=True)

# The attributes that count messages, by the state in which Holdfast counts them.
_COUNTS = {
    "ready": "ApproximateNumberOfMessages",
    "delayed": "ApproximateNumberOfMessagesDelayed",
    "leased": "ApproximateNumberOfMessagesNotVisible",
}


class QueueFacts(NamedTuple):
    """The queue's settings, which are read once, and again after SQS refused a message."""

    arn: str
    max_bytes: int
    dead_letter_arn: str | None


class QueueClient:
    """A client for one queue. Threads may share it; a forked child makes new connections."""

    def __init__(self, address: QueueAddress, lease_seconds: float, client: Any = None) -> None:
        self.address = address
        self._lease_seconds = lease_seconds
        self._given_client = client
        self._reset()
        after_fork.run_after_fork(self, QueueClient._reset)

    def _reset(self) -> None:
        given = self._given_client
        self._clients: tuple[Any, Any] | None = None if given is None else (given, given)
        self._url = self.address.url
        self._facts: QueueFacts | None = None
        self._can_read_facts = True

    def __str__(self) -> str:
        return f"queue 'sqs:{self.address.name}'"

    def make_sibling(self, address: QueueAddress) -> "QueueClient":
        """Make a client for another queue of the same account, region and server."""
        sibling = address._replace(
            region=address.region or self.address.region,
            endpoint=address.endpoint or self.address.endpoint,
        )
        return QueueClient(sibling, self._lease_seconds, self._given_client)

    @property
    def retrying_client(self) -> Any:
        """The client for calls that may take their time."""
        return self._connect()[0]

    def _connect(self) -> tuple[Any, Any]:
        """Return the client that retries, and the one for calls that a lease depends on.

        Both are made at once. Making one takes a tenth of a second, which must not be spent
        when the first lease is due.
        """
        if self._clients is None:
            location = self.address.location
            self._clients = (
                clients.make_retrying_client("sqs", **location),
                clients.make_fail_fast_client("sqs", self._lease_seconds, **location),
            )
        return self._clients

    @property
    def url(self) -> str:
        """The queue's URL, which SQS is asked for once if only the name is known."""
        if self._url is None:
            response = self.call_service("get_queue_url", QueueName=self.address.name)
            self._url = str(response["QueueUrl"])
        return self._url

    # -- calls; an error of the SDK becomes one clear line

    def call(
        self, operation: str, *, fail_fast: bool = False, **arguments: Any
    ) -> Mapping[str, Any]:
        """Call an operation of this queue.

        It may take its time, with retries. With `fail_fast`, for calls that a lease depends
        on, it responds soon or fails.
        """
        return self.call_service(operation, fail_fast=fail_fast, QueueUrl=self.url, **arguments)

    def call_service(
        self, operation: str, *, fail_fast: bool = False, **arguments: Any
    ) -> Mapping[str, Any]:
        """Call an operation. Every call to SQS of a queue is made here."""
        retrying_client, fail_fast_client = self._connect()  # it says if boto3 is missing
        client = fail_fast_client if fail_fast else retrying_client
        try:
            return call_checked(client, operation, **arguments)
        except get_client_errors() as error:
            raise translate_error(str(self), error) from error

    def receive(
        self,
        count: int,
        *,
        visibility_seconds: int,
        wait_seconds: int,
        attributes: Sequence[str],
    ) -> Sequence[RawMessage]:
        """Receive up to `count` messages, with these system attributes and all others."""
        response = self.call(
            "receive_message",
            MaxNumberOfMessages=count,
            VisibilityTimeout=visibility_seconds,
            WaitTimeSeconds=wait_seconds,
            AttributeNames=attributes,
            MessageAttributeNames=["All"],
        )
        messages: Sequence[RawMessage] = response.get("Messages", ())
        return messages

    def set_visibility(
        self, receipts: Sequence[Receipt], seconds: int
    ) -> list[EntryFailure | None]:
        """Set the visibility timeout of up to ten messages, and return their failures.

        The failure is None for a message that succeeded.
        """
        return self.call_batch(
            "change_message_visibility_batch",
            [
                {"ReceiptHandle": receipt.handle, "VisibilityTimeout": seconds}
                for receipt in receipts
            ],
            fail_fast=True,
        )

    def delete(self, receipts: Sequence[Receipt]) -> list[EntryFailure | None]:
        """Delete up to ten messages, and return their failures as `set_visibility` does."""
        entries = [{"ReceiptHandle": receipt.handle} for receipt in receipts]
        return self.call_batch("delete_message_batch", entries, fail_fast=True)

    def call_batch(
        self, operation: str, entries: Sequence[Mapping[str, Any]], *, fail_fast: bool = False
    ) -> list[EntryFailure | None]:
        """Call an operation with up to ten entries, and return the failure of each, or None.

        An entry that the response does not name has failed, and may be tried again. Raises
        QueueUnavailable if the response names another entry, or one twice.
        """
        numbered = {str(number): entry for number, entry in enumerate(entries)}
        request = [{"Id": id, **entry} for id, entry in numbered.items()]
        response = self.call(operation, fail_fast=fail_fast, Entries=request)
        failures: dict[str, EntryFailure | None] = {}
        for kind in ("Failed", "Successful"):
            for result in response.get(kind, ()):
                entry = numbered.get(id := result["Id"])
                if entry is None or id in failures:
                    raise QueueUnavailable(f"{self}: {operation} got another call's response")
                if kind == "Failed":
                    failures[id] = _parse_failure(result)
                else:
                    failures[id] = None if _has_same_body(entry, result) else _OTHER_BODY
        return [failures.get(id, _NO_RESPONSE) for id in numbered]

    def send(self, message_id: str, size: int, **arguments: Any) -> None:
        """Send one message of `size` bytes, including its attributes.

        Raises MessageTooLarge or MalformedMessage if SQS refuses the message itself, and
        QueueUnavailable if SQS received another body.
        """
        try:
            response = self.call("send_message", **arguments)
        except ConfigError as error:
            if (code := get_cause_code(error)) not in MESSAGE_REFUSED:
                raise
            raise self.make_refusal(message_id, size, code) from error
        if not _has_same_body(arguments, response):
            raise QueueUnavailable(f"{self}: {_OTHER_BODY.code}")

    def make_refusal(
        self, message_id: str, size: int, code: str
    ) -> MessageTooLarge | MalformedMessage:
        """Return the error that says why SQS refused a message.

        SQS's code does not say why, so the size is compared with the queue's limit, which is
        read again because it may have changed.
        """
        self._facts = None
        try:
            self.check_size(message_id, size)
        except MessageTooLarge as error:
            return error
        return MalformedMessage(f"{self}: message {message_id!r} was refused ({code})")

    # -- attributes

    def read_attributes(self, *names: str) -> Mapping[str, str]:
        """Read the queue's attributes with these names from SQS."""
        response = self.call("get_queue_attributes", AttributeNames=list(names))
        attributes: Mapping[str, str] = response.get("Attributes", {})
        return attributes

    def count_messages(self) -> dict[str, int]:
        """Count the messages in each state approximately, as SQS does."""
        attributes = self.read_attributes(*_COUNTS.values())
        return {state: int(attributes.get(name, 0)) for state, name in _COUNTS.items()}

    @property
    def facts(self) -> QueueFacts:
        """The queue's settings, read on first use."""
        if (facts := self._facts) is None:  # a local, because another thread may reset it
            attributes = self.read_attributes("All")
            policy = json.loads(attributes.get("RedrivePolicy") or "{}")
            facts = self._facts = QueueFacts(
                arn=attributes.get("QueueArn", ""),
                max_bytes=int(attributes.get("MaximumMessageSize", MAX_MESSAGE_BYTES)),
                dead_letter_arn=policy.get("deadLetterTargetArn"),
            )
        return facts

    def check_size(self, message_id: str, size: int) -> int:
        """Return how many bytes the queue accepts.

        Raises MessageTooLarge if `size` is more, after reading the limit again, because it
        may have been raised.
        """
        if size > self._max_bytes(size):
            self._facts = None
        if size > (limit := self._max_bytes(size)):
            raise MessageTooLarge(
                f"{self}: message {message_id!r} has {size:,} bytes and the queue accepts at "
                f"most {limit:,}: raise its MaximumMessageSize (SQS allows "
                f"{MAX_MESSAGE_BYTES:,}), or store the payload elsewhere and push its address"
            )
        return limit

    def _max_bytes(self, size: int) -> int:
        """Return the queue's limit, or an assumed one if the role may not read it.

        A role that may send may lack that permission. Then the older limit is assumed for
        every message that fits into it.
        """
        try:
            if self._can_read_facts:
                return self.facts.max_bytes
        except ConfigError as error:
            if get_cause_code(error) not in DENIED:
                raise
            self._can_read_facts = False
        return OLDER_MAX_MESSAGE_BYTES if size <= OLDER_MAX_MESSAGE_BYTES else MAX_MESSAGE_BYTES

    def close(self) -> None:
        """Close the connections. The next call makes new ones."""
        for client in self._clients or ():
            if client is not self._given_client:
                client.close()
        self._reset()


def _parse_failure(entry: Mapping[str, Any]) -> EntryFailure:
    code = str(entry.get("Code", "Unknown"))
    return EntryFailure(code, is_transient_code(code, bool(entry.get("SenderFault"))))


def _has_same_body(sent: Mapping[str, Any], response: Mapping[str, Any]) -> bool:
    """Return whether SQS received the body that was sent, as far as the response says."""
    if (digest := response.get("MD5OfMessageBody")) is None or "MessageBody" not in sent:
        return True
    body = sent["MessageBody"].encode("utf-8", "surrogatepass")
    return bool(md5(body, usedforsecurity=False).hexdigest() == digest)


def split_batches(items: Sequence[Any]) -> list[Sequence[Any]]:
    """Split the items into batches of ten."""
    return [
        items[start : start + MAX_BATCH_ENTRIES]
        for start in range(0, len(items), MAX_BATCH_ENTRIES)
    ]
