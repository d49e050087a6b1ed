"""One SQS queue as a thing to call: its clients, its URL, its attributes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.adapters.aws import clients
from holdfast.adapters.aws.errors import DENIED, MESSAGE_REFUSED, code_of, explained
from holdfast.adapters.aws.sqs.address import QueueAddress
from holdfast.core.errors import ConfigError, MalformedMessage, MessageTooLarge
from holdfast.core.process import after_fork

BATCH = 10  # entries, in every batch call
LARGEST_BYTES = 1_048_576
OLDER_LARGEST_BYTES = 262_144  # of queues made before SQS took more


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What is read once. A refusal reads it again."""

    arn: str
    visibility_seconds: float
    max_bytes: int
    dead_letter_arn: str | None
    max_receives: int | None


class QueueClient:
    """Calls one queue. Safe to share between threads; a forked child connects anew."""

    def __init__(self, address: QueueAddress, lease_seconds: float, client: Any = None) -> None:
        self.address = address
        self._lease_seconds = lease_seconds
        self._given = client
        self._begin()
        after_fork.run_after_fork(self, QueueClient._begin)

    def _begin(self) -> None:
        self._patient = self._prompt = self._given
        self._url = self.address.url
        self._facts: QueueFacts | None = None
        self._may_look = True

    def __str__(self) -> str:
        return f"queue 'sqs:{self.address.name}'"

    def beside(self, address: QueueAddress) -> "QueueClient":
        """Another queue of the same account, region and server."""
        there = QueueAddress(
            address.name,
            address.url,
            address.region or self.address.region,
            address.endpoint or self.address.endpoint,
        )
        return QueueClient(there, self._lease_seconds, self._given)

    @property
    def patient(self) -> Any:
        if self._patient is None:
            self._connect()
        return self._patient

    @property
    def prompt(self) -> Any:
        if self._prompt is None:
            self._connect()
        return self._prompt

    def _connect(self) -> None:
        """Both at once: making a client takes a tenth of a second, which is not to be
        spent when the first lease is due.
        """
        there = {"region_name": self.address.region, "endpoint_url": self.address.endpoint}
        self._patient = clients.patient("sqs", **there)
        self._prompt = clients.prompt("sqs", self._lease_seconds, **there)

    @property
    def url(self) -> str:
        if self._url is None:
            answer = self._ask(self.patient, "get_queue_url", QueueName=self.address.name)
            self._url = str(answer["QueueUrl"])
        return self._url

    # -- calls; what the SDK raises becomes one clear line

    def soon(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """For what a lease hangs on: answers soon, or fails."""
        return self._ask(self.prompt, operation, QueueUrl=self.url, **arguments)

    def patiently(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        return self._ask(self.patient, operation, QueueUrl=self.url, **arguments)

    def send(self, message_id: str, size: int, **arguments: Any) -> None:
        """Send one message of `size` bytes, attributes counted.

        Raises MessageTooLarge or MalformedMessage when SQS refuses the message itself.
        """
        try:
            self.patiently("send_message", **arguments)
        except ConfigError as error:
            if (code := code_of(error.__cause__ or error)) not in MESSAGE_REFUSED:
                raise
            raise self.refusal(message_id, size, code) from error

    def refusal(
        self, message_id: str, size: int, code: str
    ) -> MessageTooLarge | MalformedMessage:
        """Say why SQS refused a message. Its code does not tell, so the size is compared
        with the limit of the queue, which may have changed since it was read.
        """
        self._facts = None
        try:
            self.limit_for(message_id, size)
        except MessageTooLarge as error:
            return error
        return MalformedMessage(f"{self}: message {message_id!r} was refused ({code})")

    def about(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """For what is not a call to one queue."""
        return self._ask(self.patient, operation, **arguments)

    def _ask(self, client: Any, operation: str, **arguments: Any) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer: Mapping[str, Any] = getattr(client, operation)(**arguments)
        except (BotoCoreError, ClientError) as error:
            raise explained(str(self), error) from error
        return answer

    # -- attributes

    def attributes(self, *names: str) -> Mapping[str, str]:
        answer = self.patiently("get_queue_attributes", AttributeNames=list(names))
        found: Mapping[str, str] = answer.get("Attributes", {})
        return found

    @property
    def facts(self) -> QueueFacts:
        if (known := self._facts) is None:  # another thread may forget them meanwhile
            known = self._facts = _facts(self.attributes("All"))
        return known

    def limit_for(self, message_id: str, size: int) -> int:
        """Return the most bytes the queue takes. Raises MessageTooLarge when `size` is more,
        after the limit was read again: it may have been raised.
        """
        if size > self._max_bytes(size):
            self._facts = None
        if size > (limit := self._max_bytes(size)):
            raise MessageTooLarge(
                f"{self}: message {message_id!r} has {size:,} bytes and the queue takes at "
                f"most {limit:,}: raise its MaximumMessageSize (SQS allows {LARGEST_BYTES:,}), "
                "or store the payload elsewhere and push its address"
            )
        return limit

    def _max_bytes(self, size: int) -> int:
        """A role that may send need not have the right to ask for the limit. Then the older
        one is assumed for all that fits into it.
        """
        try:
            if self._may_look:
                return self.facts.max_bytes
        except ConfigError as error:
            if code_of(error.__cause__ or error) not in DENIED:
                raise
            self._may_look = False
        return OLDER_LARGEST_BYTES if size <= OLDER_LARGEST_BYTES else LARGEST_BYTES

    def close(self) -> None:
        """Let go of the connections; the next call makes new ones."""
        for client in {
            id(c): c for c in (self._patient, self._prompt) if c is not None
        }.values():
            if client is not self._given:
                client.close()
        self._begin()


def _facts(found: Mapping[str, str]) -> QueueFacts:
    policy = json.loads(found.get("RedrivePolicy") or "{}")
    receives = policy.get("maxReceiveCount")
    return QueueFacts(
        arn=found.get("QueueArn", ""),
        visibility_seconds=float(found.get("VisibilityTimeout", 30)),
        max_bytes=int(found.get("MaximumMessageSize", LARGEST_BYTES)),
        dead_letter_arn=policy.get("deadLetterTargetArn"),
        max_receives=int(receives) if receives is not None else None,
    )


def batches(things: Sequence[Any]) -> list[Sequence[Any]]:
    return [things[start : start + BATCH] for start in range(0, len(things), BATCH)]
