"""The messages that this process holds, and the calls that renew and settle them.

SQS accepts a receipt handle after its time is over. So the queue checks a lease's deadline
before each of these calls; see the top of `queue.py`.

Acks of several threads are sent together, ten to a call, after a few milliseconds at most. No
thread deletes for others in the background, so no ack returns before SQS has responded. The
first thread to arrive leads: it waits a moment for others, sends up to ten acks in one call,
and passes each thread its result. A thread that arrives during that call leads the next one.
Each thread sleeps until its own result arrives, and the leader sleeps until the batch is
complete. If every arrival woke every thread, ten threads would spend more time waking up than
working.

A message that is newer than the code waits for newer code without using up its attempts. A
standard queue's message waits as a new copy, which SQS counts from 0. In a FIFO queue a copy
would go to the end of its group, so the message waits where it is: it stays hidden and is
received again after each wait. SQS counts those receives, and they cannot be undone:

    receive 1 ─ 1 min ─ receive 2 ─ 2 min ─ receive 3 ─ 4 min ─ receive 4 ─ …

Each wait is twice as long as the one before. So a deployment of an hour costs six receives, and
afterwards the message is hidden for no longer than the deployment took. The queue's own
redrive policy counts those receives: a maxReceiveCount of 6 is enough for half an hour, one
of 10 for eight hours.

The newer code cannot see which receives were waits. But waits take time, so the time since
the first receive says how many there can have been. That many are not counted as attempts.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from random import Random
from threading import Condition, Lock
from weakref import WeakValueDictionary

from holdfast.aws.errors import DENIED, NO_QUEUE, get_cause_code
from holdfast.errors import ConfigError, HoldfastError, LeaseLost, QueueUnavailable
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import Clock
from holdfast.lease.lease import RENEWED, Lease, Refused, Renewal, Renewed, Unanswered
from holdfast.queues.sqs.dead_letters import SQSDeadLetters
from holdfast.queues.sqs.queue_client import (
    MAX_BATCH_ENTRIES,
    EntryFailure,
    QueueClient,
    Receipt,
    split_batches,
)

GATHER_SECONDS = 0.005  # for how long the first ack waits for others
_MAX_ADOPT_TRIES = 3
_ADOPT_BACKOFF = Backoff(first_seconds=0.1, factor=2.0, max_seconds=1.0)
_random = Random()

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
        self._ack_batcher = AckBatcher(client.delete, lambda: len(self._leases))

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
            if get_cause_code(error) in NO_QUEUE | DENIED:
                return [Refused(str(error))] * len(receipts)
            raise
        return [_to_renewal(failure) for failure in failures]

    def adopt(
        self, receipts: Sequence[Receipt], seconds: float, clock: Clock, until: float
    ) -> tuple[dict[Receipt, float], set[str]]:
        """Extend receipts of deliveries that another receiver made, ten to a call.

        Each batch is tried once before any is tried again, because a few failing receipts must
        not make the others expire. No call begins after `until` (monotonic). Returns the
        receipts that SQS extended, each with the monotonic time before the call, and why the
        others were not extended.
        """
        adopted: dict[Receipt, float] = {}
        problems: set[str] = set()
        left = [receipt for receipt in receipts if receipt.handle]
        for tries in range(1, _MAX_ADOPT_TRIES + 1):
            unanswered: list[Receipt] = []
            for batch in split_batches(left):
                asked_at = clock.monotonic()
                renewals = self._try_extend(batch, seconds, has_time=asked_at < until)
                for receipt, renewal in zip(batch, renewals, strict=True):
                    if isinstance(renewal, Renewed):
                        adopted[receipt] = asked_at
                        continue
                    problems.add(renewal.reason)
                    if isinstance(renewal, Unanswered):
                        unanswered.append(receipt)
            left = unanswered
            if not left or tries == _MAX_ADOPT_TRIES or clock.monotonic() >= until:
                break
            clock.sleep(_ADOPT_BACKOFF.delay(tries, _random))
        return adopted, problems

    def _try_extend(
        self, batch: Sequence[Receipt], seconds: float, *, has_time: bool
    ) -> Sequence[Renewal]:
        if not has_time:
            return [Unanswered("there is no time left to extend them")] * len(batch)
        try:
            return self.extend(batch, seconds)
        except HoldfastError as error:
            return [Unanswered(str(error))] * len(batch)

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

        This extends a receipt that a handler had first, to make sure that it is still valid,
        because a message that another worker holds must not get a second copy.
        """
        if not receipt.copied:  # copy once, even if the delete must be repeated
            match self.extend([receipt], seconds)[0] if self._was_added(receipt) else RENEWED:
                case Refused(refusal):
                    return LeaseLost(refusal)
                case Unanswered(problem):
                    raise QueueUnavailable(f"{self._client}: {problem}")
                case Renewed():
                    self._dead.send_copy(receipt, reason, detail, attempts)
                    receipt.copied = True
        return self._settle(receipt, lambda: self._client.delete([receipt])[0])

    def _was_added(self, receipt: Receipt) -> bool:
        lease = self._leases.get(receipt.sqs_id)
        return lease is not None and lease.handle is receipt

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


class _Ticket:
    __slots__ = ("done", "error", "item", "result", "wakeup")

    def __init__(self, item: Receipt) -> None:
        self.item = item
        self.wakeup = Lock()  # released when the item is done, or when its thread is to lead
        self.wakeup.acquire()
        self.done = False
        self.result: EntryFailure | None = None
        self.error: BaseException | None = None


class AckBatcher:
    """Calls `call_batch` with the items of several threads, up to ten at a time.

    `count_expected` returns how many items can arrive at all, so that no leader waits for
    items that cannot come.
    """

    def __init__(
        self,
        call_batch: Callable[[Sequence[Receipt]], Sequence[EntryFailure | None]],
        count_expected: Callable[[], int],
    ) -> None:
        self._call_batch, self._count_expected = call_batch, count_expected
        self._complete = Condition()  # only a leader waits for it
        self._waiting: list[_Ticket] = []
        self._leader: _Ticket | None = None

    def submit(self, item: Receipt) -> EntryFailure | None:
        """Send the item with a batch and return its result. Raises what the call raised."""
        ticket = _Ticket(item)
        try:
            if not self._join(ticket):
                ticket.wakeup.acquire()
            if not ticket.done:
                self._lead(ticket)
        except BaseException:  # Ctrl-C while it waited
            self._leave(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.result

    def _join(self, ticket: _Ticket) -> bool:
        """Add the ticket and return whether its thread is to lead."""
        with self._complete:
            self._waiting.append(ticket)
            if self._leader is None:
                self._leader = ticket
                return True
            if self._is_complete():
                self._complete.notify()
            return False

    def _lead(self, ticket: _Ticket) -> None:
        with self._complete:
            self._complete.wait_for(self._is_complete, GATHER_SECONDS)
            others = [other for other in self._waiting if other is not ticket]
            batch = [ticket, *others[: MAX_BATCH_ENTRIES - 1]]
            self._waiting = others[MAX_BATCH_ENTRIES - 1 :]
            self._choose_leader()
        self._send(batch)

    def _leave(self, ticket: _Ticket) -> None:
        """Remove the ticket, so that no thread waits for a leader that has left."""
        with self._complete:
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            if self._leader is ticket:
                self._choose_leader()

    def _choose_leader(self) -> None:
        """Let the next waiting thread lead. The caller must hold the lock."""
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            self._leader.wakeup.release()

    def _is_complete(self) -> bool:
        return len(self._waiting) >= min(MAX_BATCH_ENTRIES, self._count_expected())

    def _send(self, batch: Sequence[_Ticket]) -> None:
        try:
            results = self._call_batch([ticket.item for ticket in batch])
            for ticket, result in zip(batch, results, strict=True):
                ticket.result = result
        except BaseException as error:  # each waiting thread must receive it
            for ticket in batch:
                ticket.error = error
        finally:
            for ticket in batch:
                ticket.done = True
                ticket.wakeup.release()


FIRST_WAIT_SECONDS = 60
_MAX_WAIT_SECONDS = 6 * 3600  # SQS hides a message for twice as long at most
_MAX_DOUBLINGS = 16


def compute_wait_seconds(receives: int) -> int:
    """Return how long a message waits after so many receives."""
    doublings = min(receives - 1, _MAX_DOUBLINGS)
    return min(FIRST_WAIT_SECONDS << doublings, _MAX_WAIT_SECONDS)


def count_possible_waits(seconds: float) -> int:
    """Return how many waits there can have been in `seconds` since the first receive.

    Each is assumed to have taken half its time, because this process's clock may differ
    from that of SQS.
    """
    waits = 0
    while seconds >= (needed := compute_wait_seconds(waits + 1) / 2):
        seconds -= needed
        waits += 1
    return waits


def compute_first_receive_age(system: Mapping[str, str], now: float) -> float:
    """Return the seconds since SQS first delivered the message, or 0.0 if it is unknown."""
    first = system.get("ApproximateFirstReceiveTimestamp")
    return 0.0 if first is None else now - int(first) / 1000
