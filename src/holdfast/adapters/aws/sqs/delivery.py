"""DeliveryIntake: turns a delivery into a leased message before a handler gets it."""

from collections.abc import Callable
from typing import Generic
from weakref import WeakValueDictionary

from holdfast.adapters.aws.sqs.dead_letters import SQSDeadLetters
from holdfast.adapters.aws.sqs.queue_client import QueueClient
from holdfast.adapters.aws.sqs.receipt import (
    CAP_SECONDS,
    Receipt,
    delete_messages,
    set_visibility,
)
from holdfast.adapters.aws.sqs.republish import send_copy
from holdfast.adapters.aws.sqs.schema_wait import compute_wait_seconds
from holdfast.core import events as ev
from holdfast.core.errors import HoldfastError, MalformedMessage, NewerSchema
from holdfast.core.events import Events
from holdfast.core.lease.lease import RENEWED, Lease, LeaseSource
from holdfast.core.queue.message import M, MessageCodec, attach_lease
from holdfast.core.worker.settle import SettleResult

NEWER_SCHEMA_DELAY_SECONDS = 30


class InFlightIndex:
    """The leases that this process holds, by SQS's own message ids.

    The references are weak, so a lease that no other object refers to disappears.
    """

    def __init__(self) -> None:
        self._leases: WeakValueDictionary[str, Lease] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: Lease) -> None:
        """Add a lease that this process took."""
        self._leases[lease.handle.sqs_id] = lease

    def forget(self, receipt: Receipt) -> None:
        """Remove the lease with this receipt. Does nothing if it was removed before."""
        self._leases.pop(receipt.sqs_id, None)

    def try_adopt(self, receipt: Receipt, asked_at: float, now: float, seconds: float) -> bool:
        """Give the receipt to the live lease that this process has on the same message.

        SQS may deliver a message that a handler here already works on. From then on only the
        newest handle is sure to be valid, so it replaces the old one. Returns False if there
        is no such lease.
        """
        lease = self._leases.get(receipt.sqs_id)
        if lease is None or not lease.live or now >= lease.deadline:
            return False
        held_receipt: Receipt = lease.handle
        with held_receipt.lock:
            if held_receipt.settled:
                return False
            held_receipt.handle = receipt.handle
        lease.apply_renewal(RENEWED, asked_at=asked_at, now=now, seconds=seconds)
        return True


class DeliveryIntake(Generic[M]):
    """Turns deliveries into leased messages, and settles those that no handler can get."""

    def __init__(
        self,
        client: QueueClient,
        codec: MessageCodec[M],
        dead: SQSDeadLetters,
        name: str,
        lease_seconds: float,
        events: Events,
    ) -> None:
        self._client, self._codec, self._dead = client, codec, dead
        self._name, self._lease_seconds, self._events = name, lease_seconds, events

    def admit(
        self,
        source: LeaseSource,
        receipt: Receipt,
        receives: int,
        waits: int,
        asked_at: float,
        max_attempts: float,
    ) -> M | SettleResult:
        """Return the message with its lease from `source`, or how it was settled instead.

        Of its `receives`, `waits` may have been spent waiting for newer code.
        """
        attempt = max(1, receives - waits)
        try:
            message = self._codec.decode(receipt.body.encode("utf-8", "surrogatepass"))
        except NewerSchema as error:
            self._wait_for_newer_code(receipt, receives, error)
            return SettleResult.GIVEN_BACK
        except MalformedMessage as error:
            reason = f"malformed: {error}"
            message_id = error.message_id or receipt.sqs_id
            return self._dead_letter(
                receipt, message_id, reason, attempt, log_reason="malformed"
            )
        if "id" not in message.model_fields_set:
            # Another program sent it. An id that is generated here would change with every
            # delivery.
            message.__dict__["id"] = receipt.sqs_id
        if attempt > max_attempts:
            log_reason = f"gave up after {max_attempts:g} attempts"
            reason = f"{log_reason}: none was settled, so the worker died or lost its lease"
            return self._dead_letter(
                receipt, message.id, reason, attempt - 1, log_reason=log_reason
            )
        lease = Lease(
            source,
            receipt,
            message_id=message.id,
            attempt=attempt,
            fence=receives,
            claimed_at=asked_at,
            seconds=self._lease_seconds,
            cap_at=asked_at + CAP_SECONDS,
        )
        attach_lease(message, lease)
        return message

    def _wait_for_newer_code(self, receipt: Receipt, receives: int, error: NewerSchema) -> None:
        self._try(lambda: self._postpone(receipt, receives))
        message_id = error.message_id or receipt.sqs_id
        self._events.emit(ev.SchemaTooNew(self._name, message_id, receives, error.version))

    def _postpone(self, receipt: Receipt, receives: int) -> None:
        """Send the message again with a delay, so that the wait uses up no attempts.

        A FIFO queue would lose its order by that, so there the message waits where it is.
        """
        if self._client.address.fifo:
            set_visibility(self._client, [receipt], compute_wait_seconds(receives))
            return
        send_copy(self._client, receipt, DelaySeconds=NEWER_SCHEMA_DELAY_SECONDS)
        delete_messages(self._client, [receipt])

    def _dead_letter(
        self, receipt: Receipt, message_id: str, reason: str, attempts: int, *, log_reason: str
    ) -> SettleResult:
        def dead_letter() -> None:
            self._dead.send_copy(receipt, reason, None, attempts)
            delete_messages(self._client, [receipt])
            self._events.emit(
                ev.DeadLettered(self._name, message_id, attempts, reason=log_reason)
            )

        return SettleResult.DEAD_LETTERED if self._try(dead_letter) else SettleResult.ABANDONED

    def _try(self, action: Callable[[], None]) -> bool:
        """Run the action and return whether it succeeded.

        An error is only reported, because one bad message must not affect the others that
        were received with it.
        """
        try:
            action()
        except HoldfastError as error:
            self._events.emit(ev.PollFailed(self._name, str(error)))
            return False
        return True
