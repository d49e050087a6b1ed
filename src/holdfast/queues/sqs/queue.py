"""SQSQueue: the queue contract on Amazon SQS.

    push      SendMessage(Batch)
    poll          ReceiveMessage with long polling, never for more than requested
    renew         ChangeMessageVisibilityBatch(lease), ten at a time
    ack           DeleteMessageBatch with the acks of all threads
    nack          ChangeMessageVisibility(backoff), or 0, or the lease is left to expire
    dead-letter   SendMessage to the dead-letter queue, then DeleteMessage

SQS accepts a receipt handle after its time is over, and then deletes or hides a message that
another worker has. So every call first checks the lease's own deadline, which counts from
before the receive. A stale handle never leaves this process.
"""

from __future__ import annotations  # keeps annotations as text, which loads no types

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from math import ceil, inf
from threading import Event
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from holdfast import events as ev
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    LeaseLost,
    QueueUnavailable,
)
from holdfast.lease import after_fork
from holdfast.lease.lease import Lease, Renewal
from holdfast.queue.admission import Delivery
from holdfast.queue.manager import QueueKeywords, QueueManager
from holdfast.queue.message import AnyMessage, M, SettleResult, get_lease
from holdfast.queues.sqs.address import parse_address
from holdfast.queues.sqs.dead_letters import SQSDeadLetters
from holdfast.queues.sqs.long_poll import LongPoll
from holdfast.queues.sqs.queue_client import (
    MAX_BATCH_ENTRIES,
    QueueClient,
    RawMessage,
    Receipt,
)
from holdfast.queues.sqs.receipts import (
    InFlightReceipts,
    compute_first_receive_age,
    compute_wait_seconds,
    count_possible_waits,
)
from holdfast.queues.sqs.sending import (
    MessageSender,
    check_group,
    get_assigned_id,
    read_headers,
    send_copy,
)

if TYPE_CHECKING:
    from holdfast.queue.info import QueueStats

CAP_SECONDS = 12 * 3600.0  # from the receive; SQS refuses to extend beyond it
MAX_POLL_SECONDS = 20

_ATTRIBUTES = [
    "AWSTraceHeader",
    "ApproximateFirstReceiveTimestamp",
    "ApproximateReceiveCount",
    "MessageGroupId",
]

OnNack = Literal["backoff", "now", "leave"]


class SQSQueue(QueueManager[M]):
    """A queue of Amazon SQS, standard or FIFO.

    on_nack        what a nack without a delay does: "backoff" waits by the backoff, "now"
                   makes the message visible at once, "leave" lets its lease expire
    group_by       the field whose value is the message group of a FIFO queue; without it
                   all messages have one order
    dead_letters   name or URL of the queue for dead letters; by default the queue of the
                   redrive policy, else `<name>-dead`
    """

    renew_batch = MAX_BATCH_ENTRIES
    poll_batch = MAX_BATCH_ENTRIES
    slot_wait_seconds = 0.003
    min_empty_checks = 3
    messaging_system = "aws_sqs"
    max_hold_seconds = CAP_SECONDS
    capabilities: ClassVar[frozenset[str]] = frozenset({"redrive_by_id", "drop"})

    def __init__(
        self,
        address: str,
        model: type[M] = AnyMessage,  # type: ignore[assignment]  # what M is by default
        *,
        dedupe: bool = False,
        on_nack: OnNack = "backoff",
        group_by: str | None = None,
        dead_letters: str | None = None,
        client: Any = None,
        **settings: Unpack[QueueKeywords],
    ) -> None:
        where = parse_address(address)
        super().__init__(f"sqs:{where.name}", model, **settings)
        lease_seconds, clock = self.lease_seconds, self.clock
        if lease_seconds > CAP_SECONDS:
            raise ConfigError("lease_seconds: SQS hides a message for at most 12 hours")
        if on_nack not in ("backoff", "now", "leave"):
            raise ConfigError(f"on_nack is 'backoff', 'now' or 'leave', not {on_nack!r}")
        if dedupe and not where.fifo:
            raise ConfigError(
                "SQS refuses the same id twice only in FIFO queues (for five minutes): "
                "use one whose name ends in .fifo, or leave dedupe off"
            )
        self.fifo = where.fifo
        # One receive from a FIFO queue may return ten messages of one group, which would be
        # worked on in parallel. If they are received one by one, SQS itself holds back the
        # group's other messages.
        self._max_per_receive = 1 if self.fifo else MAX_BATCH_ENTRIES
        # Claiming ahead would save no call, and hold back the groups of the claimed messages.
        self.can_prefetch = not self.fifo
        # A receive counts from before the call, so its wait must leave most of the lease.
        self._max_poll_seconds = min(MAX_POLL_SECONDS, int(lease_seconds / 3))
        self.on_nack = on_nack
        group_by = check_group(model, group_by, fifo=self.fifo)
        self._client = QueueClient(where, lease_seconds, client)
        self._warned_no_checkpoints = False
        self._sender = MessageSender(self._client, self._codec, group_by, clock, self._random)
        self.operator: SQSDeadLetters = SQSDeadLetters(
            self._client, dead_letters, self.capabilities
        )
        self._reset_after_fork()
        after_fork.run_after_fork(self, SQSQueue._reset_after_fork)

    def _reset_after_fork(self) -> None:
        """Start without messages and locks, because a fork must not use its parent's."""
        self._in_flight = InFlightReceipts(self._client, self.operator)

    def check(self) -> None:
        """Raise ConfigError if the queue is missing or may not be read."""
        with suppress(QueueUnavailable):  # an outage may end
            self._client.facts  # noqa: B018  # reads them

    # -- producing

    def _push(self, message: M, delay_seconds: float) -> str:
        self._sender.send(message, delay_seconds)
        return message.id

    def push_many(self, messages: Iterable[M], *, delay_seconds: float = 0.0) -> list[str]:
        """Push the messages, ten to a call.

        An error names the messages that were not accepted. Those of earlier calls were.
        """
        return self._sender.send_all(messages, delay_seconds)

    # -- consuming

    def poll(
        self, batch_size: int = 1, *, wait_seconds: float = 0.0, stop: Event | None = None
    ) -> list[M]:
        """Receive up to `batch_size` messages, with long polls if it may wait."""
        if wait_seconds <= 0 or self._max_poll_seconds == 0:
            return super().poll(batch_size, wait_seconds=wait_seconds, stop=stop)
        if batch_size < 1:
            raise ValueError(f"batch_size must be 1 or more, not {batch_size}")
        give_up_at = self.clock.monotonic() + wait_seconds
        while not (stop and stop.is_set()):
            left = give_up_at - self.clock.monotonic()
            if left <= 0:
                break
            wait = min(self._max_poll_seconds, ceil(left))
            if claimed := self._admit_all(self._receive(batch_size, wait, stop)):
                return claimed
        return []

    def _claim(self, limit: int) -> Sequence[Delivery]:
        return self._receive(limit, 0, None)

    def _receive(self, limit: int, wait: int, stop: Event | None) -> Sequence[Delivery]:
        deliveries: list[Delivery] = []
        try:
            while (missing := limit - len(deliveries)) > 0:
                asked_at = self.clock.monotonic()
                raws = self._receive_raw(min(self._max_per_receive, missing), wait, stop)
                for receipt in map(Receipt, raws):
                    if not self._in_flight.try_replace(
                        receipt, asked_at, self.clock.monotonic()
                    ):
                        deliveries.append(self._make_delivery(receipt, asked_at))
                if not raws or (wait and not self.fifo):
                    break
                wait = 0
        except HoldfastError:
            if not deliveries:  # messages that were claimed must not be lost by a later error
                raise
        return deliveries

    def _receive_raw(self, count: int, wait: int, stop: Event | None) -> Sequence[RawMessage]:
        receive = partial(
            self._client.receive,
            count,
            visibility_seconds=ceil(self.lease_seconds),
            wait_seconds=wait,
            attributes=_ATTRIBUTES,
        )
        if wait and stop is not None:
            return LongPoll(receive, self._give_back_unseen).run(stop)
        return receive()

    def _give_back_unseen(self, raws: Sequence[RawMessage]) -> None:
        """Give back messages that arrived after their poller had left.

        If that fails, they become visible when their lease expires.
        """
        try:
            self._client.set_visibility([Receipt(raw) for raw in raws], 0)
        except HoldfastError as error:
            self.events.emit(ev.PollFailed(self.name, str(error)))

    def _make_delivery(self, receipt: Receipt, asked_at: float) -> Delivery:
        receives = receipt.receives
        return Delivery(
            receipt,
            get_assigned_id(receipt),
            receipt.body.encode("utf-8", "surrogatepass"),
            max(1, receives - self._count_possible_waits(receipt)),
            receives,
            asked_at,
            headers=None if self.tracing is None else read_headers(receipt),
        )

    def _admit(self, delivery: Delivery, max_attempts: float) -> M | SettleResult:
        message = super()._admit(delivery, max_attempts)
        if not isinstance(message, SettleResult):
            self._in_flight.add(get_lease(message))
        return message

    def _explain_exhausted(self, delivery: Delivery) -> str:
        return ": none was settled, so the worker died or lost its lease"

    def _count_possible_waits(self, receipt: Receipt) -> int:
        """Return how many receives older workers may have spent waiting for this code.

        Version 1 is the first version, so no worker was ever too old for it.
        """
        if not self.fifo or self._codec.model.current_version() <= 1:
            return 0
        return count_possible_waits(
            compute_first_receive_age(receipt.system, self.clock.time())
        )

    def adopt_deliveries(
        self, deliveries: Sequence[RawMessage], *, until: float = inf
    ) -> list[M | SettleResult]:
        """Lease messages that another receiver got, such as Lambda's event source.

        `deliveries` are as ReceiveMessage returns them. Returns for each, in order, the
        message or how it was settled: DEAD_LETTERED if it is malformed or was received too
        often, GIVEN_BACK if it is newer than the code, ABANDONED if it is unknown whether
        its receipt is still valid. All are extended first, because it is unknown how long
        they were held. No call to SQS begins after `until` (monotonic). Errors of SQS are
        reported as events, not raised.
        """
        receipts = [Receipt(raw) for raw in deliveries]
        adopted, problems = self._in_flight.adopt(
            receipts, self.lease_seconds, self.clock, until
        )
        if len(adopted) < len(receipts):
            for problem in sorted(problems):
                self.events.emit(ev.PollFailed(self.name, problem))
        # A message that waits behind a failing one of its FIFO group is received as often
        # as that one, so its count says nothing about its own attempts.
        limit = inf if self.fifo else self.max_attempts
        return [
            self._adopt(self._make_delivery(receipt, adopted[receipt]), limit)
            if receipt in adopted
            else SettleResult.ABANDONED
            for receipt in receipts
        ]

    def _adopt(self, delivery: Delivery, max_attempts: float) -> M | SettleResult:
        try:
            return self._admit(delivery, max_attempts)
        except HoldfastError as error:
            self.events.emit(ev.PollFailed(self.name, str(error)))
            return SettleResult.ABANDONED

    # -- renewing

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        """Extend the visibility of the leases' messages."""
        return self._in_flight.renew([lease.handle for lease in leases], seconds)

    # -- settling

    def _ack(self, leases: Sequence[Lease]) -> Sequence[LeaseLost | None]:
        return self._in_flight.delete([lease.handle for lease in leases])

    def nack(
        self,
        message: M,
        *,
        delay_seconds: float | None = None,
        reason: str = "nacked",
        detail: str | None = None,
    ) -> None:
        """Give the message back; without a delay, `on_nack` decides when it is visible."""
        if delay_seconds is None and self.on_nack == "leave":
            self._abandon(message)
            return
        if delay_seconds is None and self.on_nack == "now":
            delay_seconds = 0.0
        super().nack(message, delay_seconds=delay_seconds, reason=reason, detail=detail)

    def _abandon(self, message: M) -> None:
        if (lease := self._begin_settle(message, "nacked")) is not None:
            self._in_flight.abandon(lease.handle)
            self._finish_settle(lease, "nacked", None)

    def _nack(
        self, lease: Lease, delay_seconds: float, reason: str, detail: str | None
    ) -> LeaseLost | None:
        held_seconds = self.clock.monotonic() - lease.claimed_at
        max_delay = max(0, int(CAP_SECONDS - held_seconds) - 1)
        delay = min(ceil(delay_seconds), max_delay)
        lost = self._in_flight.make_visible(lease.handle, delay)
        if lost is None:  # SQS counts the message as in flight until then
            self.stats_stale_until = max(self.stats_stale_until, self.clock.monotonic() + delay)
        return lost

    def _release(self, lease: Lease, delay_seconds: float = 0.0) -> LeaseLost | None:
        """Make the message visible at once, or let it wait for newer code; see receipts.py."""
        receipt: Receipt = lease.handle
        if not delay_seconds:
            return self._in_flight.make_visible(receipt, 0)
        if self.fifo:
            wait = compute_wait_seconds(receipt.receives)
            return self._in_flight.make_visible(receipt, wait)
        send_copy(self._client, receipt, DelaySeconds=ceil(delay_seconds))
        return self._in_flight.delete([receipt])[0]

    def _dead_letter(self, lease: Lease, reason: str, detail: str | None) -> LeaseLost | None:
        return self._in_flight.dead_letter(
            lease.handle, reason, detail, lease.attempt, self.lease_seconds
        )

    # -- checkpoints: SQS cannot store them

    def _save_checkpoint(self, lease: Lease, checkpoint: Any) -> None:
        if not self._warned_no_checkpoints:
            self._warned_no_checkpoints = True
            self.events.emit(ev.CheckpointNotKept(self.name, lease.message_id, lease.attempt))

    # -- for operators

    def stats(self) -> QueueStats:
        """Return approximate counts. Do not calculate with them: SQS promises no accuracy."""
        from holdfast.queue.info import QueueStats  # only operators need it

        counts = self._client.count_messages()
        return QueueStats(expired=0, completed=None, failed=self.operator.count(), **counts)

    def close(self) -> None:
        """Close the connections to SQS."""
        self._client.close()
