"""The messages that this process holds, and the calls that renew and settle them.

SQS accepts a receipt handle after its time is over. So the queue checks a lease's deadline
before each of these calls; see the top of `queue.py`.
"""

from collections.abc import Callable, Sequence
from math import ceil
from weakref import WeakValueDictionary

from holdfast.adapters.aws.errors import DENIED, NO_QUEUE, get_error_code
from holdfast.adapters.aws.sqs.ack_batcher import AckBatcher
from holdfast.adapters.aws.sqs.dead_letters import SQSDeadLetters
from holdfast.adapters.aws.sqs.queue_client import (
    EntryFailure,
    QueueClient,
    Receipt,
    split_batches,
)
from holdfast.core.errors import ConfigError, LeaseLost, QueueUnavailable
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal, Renewed, Unanswered

_BEING_SETTLED = Unanswered("it is being settled")


class InFlightReceipts:
    """The receipts that this process holds. Threads may share it; forks may not.

    A settling call returns LeaseLost if SQS no longer accepts the receipt, and raises
    QueueUnavailable if the call may be tried again. Settling twice does nothing.
    """

    def __init__(self, client: QueueClient, dead: SQSDeadLetters) -> None:
        self._client, self._dead = client, dead
        # By SQS's own message ids. The references are weak, so a lease that no other object
        # refers to disappears.
        self._leases: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        self._ack_batcher: AckBatcher[Receipt, EntryFailure | None] = AckBatcher(
            client.delete, lambda: len(self._leases)
        )

    # -- holding

    def add(self, lease: Lease) -> None:
        """Add a lease that this process took."""
        self._leases[lease.handle.sqs_id] = lease

    def try_replace(self, receipt: Receipt, asked_at: float, now: float) -> bool:
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
        lease.apply_renewal(RENEWED, asked_at=asked_at, now=now, seconds=lease.seconds)
        return True

    # -- renewing

    def renew(self, receipts: Sequence[Receipt], seconds: float) -> list[Renewal]:
        """Extend the receipts, except those that are being settled at this moment.

        Those are skipped because an extension would hide a message that was just nacked.
        """
        locked = [receipt for receipt in receipts if receipt.lock.acquire(blocking=False)]
        try:
            renewals: dict[Receipt, Renewal] = dict.fromkeys(locked, RENEWED)
            for batch in split_batches([receipt for receipt in locked if not receipt.settled]):
                renewals |= zip(batch, self.extend(batch, seconds), strict=True)
        finally:
            for receipt in locked:
                receipt.lock.release()
        return [renewals.get(receipt, _BEING_SETTLED) for receipt in receipts]

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Renewal]:
        """Extend up to ten receipts without taking their locks."""
        try:
            failures = self._client.set_visibility(receipts, ceil(seconds))
        except ConfigError as error:
            if get_error_code(error.__cause__ or error) in NO_QUEUE | DENIED:
                return [Refused(str(error))] * len(receipts)
            raise
        return [_to_renewal(failure) for failure in failures]

    # -- settling

    def delete(self, receipts: Sequence[Receipt]) -> list[LeaseLost | None]:
        """Delete the messages and return for each None, or LeaseLost if SQS refused it."""
        unsettled = [receipt for receipt in dict.fromkeys(receipts) if not receipt.settled]
        if len(unsettled) == 1 and len(self._leases) > 1:  # else no other ack can come
            failures = [self._ack_batcher.submit(unsettled[0])]
        else:
            batches = split_batches(unsettled)
            failures = [failure for batch in batches for failure in self._client.delete(batch)]
        ends = {
            receipt: self._record_end(receipt, failure)
            for receipt, failure in zip(unsettled, failures, strict=True)
        }
        for end in ends.values():
            if isinstance(end, QueueUnavailable):
                raise end
        return [
            end if isinstance(end := ends.get(receipt), LeaseLost) else None
            for receipt in receipts
        ]

    def make_visible(self, receipt: Receipt, seconds: int) -> LeaseLost | None:
        """Make the message visible again after `seconds`."""
        return self._settle(receipt, lambda: self._client.set_visibility([receipt], seconds)[0])

    def dead_letter(
        self, receipt: Receipt, reason: str, detail: str | None, attempts: int, seconds: float
    ) -> LeaseLost | None:
        """Send a copy with its reason to the dead letters, then delete the message.

        This extends the receipt first, to make sure that it is still valid, because a message
        that another worker holds must not get a second copy.
        """
        if not receipt.copied:  # copy once, even if the delete must be repeated
            match self.extend([receipt], seconds)[0]:
                case Refused(refusal):
                    return LeaseLost(refusal)
                case Unanswered(problem):
                    raise QueueUnavailable(f"{self._client}: {problem}")
                case Renewed():
                    self._dead.send_copy(receipt, reason, detail, attempts)
                    receipt.copied = True
        return self._settle(receipt, lambda: self._client.delete([receipt])[0])

    def abandon(self, receipt: Receipt) -> None:
        """Settle the receipt without a call: SQS redelivers the message at its deadline."""
        self._record_end(receipt, None)

    def _settle(
        self, receipt: Receipt, call: Callable[[], EntryFailure | None]
    ) -> LeaseLost | None:
        with receipt.lock:
            if receipt.settled:
                return None
            end = self._record_end(receipt, call())
        if isinstance(end, QueueUnavailable):
            raise end
        return end

    def _record_end(
        self, receipt: Receipt, failure: EntryFailure | None
    ) -> LeaseLost | QueueUnavailable | None:
        if failure is None:
            receipt.settled = True
            self._leases.pop(receipt.sqs_id, None)
            return None
        if failure.transient:
            return QueueUnavailable(f"{self._client}: {failure.code}")
        return LeaseLost(_explain_refusal(failure))


def _to_renewal(failure: EntryFailure | None) -> Renewal:
    if failure is None:
        return RENEWED
    return Unanswered(failure.code) if failure.transient else Refused(_explain_refusal(failure))


def _explain_refusal(failure: EntryFailure) -> str:
    return f"SQS does not accept the receipt any more ({failure.code})"
