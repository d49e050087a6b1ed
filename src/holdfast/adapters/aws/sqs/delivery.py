"""DeliveryIntake: what becomes of a delivery before anybody works on it."""

from collections.abc import Callable
from typing import Generic
from weakref import WeakValueDictionary

from holdfast.adapters.aws.sqs.dead_letters import SQSDeadLetters
from holdfast.adapters.aws.sqs.queue_client import QueueClient
from holdfast.adapters.aws.sqs.receipt import CAP_SECONDS, Receipt, delete, set_visibility
from holdfast.adapters.aws.sqs.republish import send_copy
from holdfast.adapters.aws.sqs.schema_wait import wait_seconds
from holdfast.core import events as ev
from holdfast.core.errors import HoldfastError, MalformedMessage, NewerSchema
from holdfast.core.events import Events
from holdfast.core.lease.lease import RENEWED, Lease, LeaseSource
from holdfast.core.queue.message import M, MessageCodec, attach_lease
from holdfast.core.worker.settle import SettleResult

NEWER_SCHEMA_DELAY_SECONDS = 30


class InFlightIndex:
    """What this process holds, by SQS's own ids. What nobody refers to any more is gone."""

    def __init__(self) -> None:
        self._leases: WeakValueDictionary[str, Lease] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: Lease) -> None:
        self._leases[lease.handle.sqs_id] = lease

    def forget(self, hold: Receipt) -> None:
        self._leases.pop(hold.sqs_id, None)

    def adopts(self, hold: Receipt, asked_at: float, now: float, seconds: float) -> bool:
        """SQS delivered what is worked on here already: only the newest handle is sure to
        be good from now on, so it takes the place of the old one.
        """
        lease = self._leases.get(hold.sqs_id)
        if lease is None or not lease.live or now >= lease.deadline:
            return False
        held: Receipt = lease.handle
        with held.lock:
            if held.closed:
                return False
            held.handle = hold.handle
        lease.answered(RENEWED, asked_at=asked_at, now=now, seconds=seconds)
        return True


class DeliveryIntake(Generic[M]):
    """Makes leased messages of deliveries, and sees to those that cannot be worked on."""

    def __init__(
        self,
        service: QueueClient,
        codec: MessageCodec[M],
        dead: SQSDeadLetters,
        name: str,
        lease_seconds: float,
        events: Events,
    ) -> None:
        self._service, self._codec, self._dead = service, codec, dead
        self._name, self._lease_seconds, self._events = name, lease_seconds, events

    def admit(
        self,
        source: LeaseSource,
        hold: Receipt,
        receives: int,
        waits: int,
        asked_at: float,
        max_attempts: float,
    ) -> M | SettleResult:
        """The message with its lease from `source`, or what became of it instead. Of its
        `receives`, `waits` may have been spent waiting for newer code.
        """
        attempt = max(1, receives - waits)
        try:
            message = self._codec.decode(hold.body.encode("utf-8", "surrogatepass"))
        except NewerSchema as error:
            self._wait_for_newer_code(hold, receives, error)
            return SettleResult.GIVEN_BACK
        except MalformedMessage as error:
            reason = f"malformed: {error}"
            message_id = error.message_id or hold.sqs_id
            return self._bury(hold, message_id, reason, attempt, log_reason="malformed")
        if "id" not in message.model_fields_set:
            # Sent by somebody else's code: one made up here would be another next time.
            message.__dict__["id"] = hold.sqs_id
        if attempt > max_attempts:
            told = f"gave up after {max_attempts:g} attempts"
            reason = f"{told}: none came to an end, so the worker died or lost its lease"
            return self._bury(hold, message.id, reason, attempt - 1, log_reason=told)
        lease = Lease(
            source,
            hold,
            message_id=message.id,
            attempt=attempt,
            fence=receives,
            claimed_at=asked_at,
            seconds=self._lease_seconds,
            cap_at=asked_at + CAP_SECONDS,
        )
        attach_lease(message, lease)
        return message

    def _wait_for_newer_code(self, hold: Receipt, receives: int, error: NewerSchema) -> None:
        self._quietly(lambda: self._put_off(hold, receives))
        message_id = error.message_id or hold.sqs_id
        self._events.emit(ev.SchemaTooNew(self._name, message_id, receives, error.version))

    def _put_off(self, hold: Receipt, receives: int) -> None:
        """As a new message, so that waiting for newer code uses up no attempts. A FIFO
        queue would lose its order by that: there it waits where it is.
        """
        if self._service.address.fifo:
            set_visibility(self._service, [hold], wait_seconds(receives))
            return
        send_copy(self._service, hold, DelaySeconds=NEWER_SCHEMA_DELAY_SECONDS)
        delete(self._service, [hold])

    def _bury(
        self, hold: Receipt, message_id: str, reason: str, attempts: int, *, log_reason: str
    ) -> SettleResult:
        def bury() -> None:
            self._dead.keep(hold, reason, None, attempts)
            delete(self._service, [hold])
            self._events.emit(ev.DeadLettered(self._name, message_id, attempts, reason=log_reason))

        return SettleResult.DEAD_LETTERED if self._quietly(bury) else SettleResult.ABANDONED

    def _quietly(self, action: Callable[[], None]) -> bool:
        """One bad message must not cost the others that came with it. False: not done."""
        try:
            action()
        except HoldfastError as error:
            self._events.emit(ev.PollFailed(self._name, str(error)))
            return False
        return True
