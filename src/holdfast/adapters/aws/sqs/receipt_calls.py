"""Holding on and letting go: the calls that a receipt is good for, and what they answer."""

from collections.abc import Callable, Sequence
from math import ceil

from holdfast.adapters.aws.errors import DENIED, NO_QUEUE, code_of
from holdfast.adapters.aws.sqs.ack_batcher import AckBatcher
from holdfast.adapters.aws.sqs.dead_letters import SQSDeadLetters
from holdfast.adapters.aws.sqs.delivery import InFlightIndex
from holdfast.adapters.aws.sqs.queue_client import QueueClient, batches
from holdfast.adapters.aws.sqs.receipt import EntryFailure, Receipt, delete, set_visibility
from holdfast.core.errors import ConfigError, LeaseLost, QueueUnavailable
from holdfast.core.lease.lease import RENEWED, Refused, Renewal, Renewed, Unanswered

_BEING_SETTLED = Unanswered("it is being settled")


class ReceiptCalls:
    """Extends, deletes, puts back and buries. Shared by threads, not by forks.

    Letting go returns LeaseLost when SQS does not know the receipt any more, and raises
    QueueUnavailable when it may be tried again. What was let go of stays so.
    """

    def __init__(self, service: QueueClient, dead: SQSDeadLetters, held: InFlightIndex) -> None:
        self._service, self._dead, self._held = service, dead, held
        self._deletions: AckBatcher[Receipt, EntryFailure | None] = AckBatcher(
            lambda holds: delete(service, holds), lambda: len(held)
        )

    # -- holding on

    def renew(self, holds: Sequence[Receipt], seconds: float) -> list[Renewal]:
        """What is being let go of at this moment is not asked for: it must not be hidden."""
        locked = [hold for hold in holds if hold.lock.acquire(blocking=False)]
        try:
            answers: dict[Receipt, Renewal] = dict.fromkeys(locked, RENEWED)
            for ten in batches([hold for hold in locked if not hold.closed]):
                answers |= zip(ten, self.extend(ten, seconds), strict=True)
        finally:
            for hold in locked:
                hold.lock.release()
        return [answers.get(hold, _BEING_SETTLED) for hold in holds]

    def extend(self, holds: Sequence[Receipt], seconds: float) -> list[Renewal]:
        """For up to ten, whoever else may be at them."""
        try:
            failures = set_visibility(self._service, holds, ceil(seconds))
        except ConfigError as error:
            if code_of(error.__cause__ or error) in NO_QUEUE | DENIED:
                return [Refused(str(error))] * len(holds)
            raise
        return [_renewal(failure) for failure in failures]

    # -- letting go

    def delete(self, holds: Sequence[Receipt]) -> list[LeaseLost | None]:
        unsettled = [hold for hold in dict.fromkeys(holds) if not hold.closed]
        if len(unsettled) == 1:
            failures = [self._deletions.hand_in(unsettled[0])]
        else:
            failures = [f for ten in batches(unsettled) for f in delete(self._service, ten)]
        ends = {
            hold: self._ended(hold, failure)
            for hold, failure in zip(unsettled, failures, strict=True)
        }
        for end in ends.values():
            if isinstance(end, QueueUnavailable):
                raise end
        return [end if isinstance(end := ends.get(hold), LeaseLost) else None for hold in holds]

    def put_back(self, hold: Receipt, seconds: int) -> LeaseLost | None:
        """Visible again after `seconds`."""
        return self._let_go(hold, lambda: set_visibility(self._service, [hold], seconds)[0])

    def bury(
        self, hold: Receipt, reason: str, detail: str | None, attempts: int, seconds: float
    ) -> LeaseLost | None:
        """Keep a copy with its reason, then delete. SQS is asked first whether it is still
        ours: another holder's message must not get a second copy.
        """
        if not hold.kept:  # once is enough, however often the delete must be repeated
            match self.extend([hold], seconds)[0]:
                case Refused(why):
                    return LeaseLost(why)
                case Unanswered(why):
                    raise QueueUnavailable(f"{self._service}: {why}")
                case Renewed():
                    self._dead.keep(hold, reason, detail, attempts)
                    hold.kept = True
        return self._let_go(hold, lambda: delete(self._service, [hold])[0])

    def leave(self, hold: Receipt) -> None:
        """Say nothing to SQS: it comes back when its time has run out."""
        self._ended(hold, None)

    def _let_go(
        self, hold: Receipt, call: Callable[[], EntryFailure | None]
    ) -> LeaseLost | None:
        with hold.lock:
            if hold.closed:
                return None
            end = self._ended(hold, call())
        if isinstance(end, QueueUnavailable):
            raise end
        return end

    def _ended(
        self, hold: Receipt, failure: EntryFailure | None
    ) -> LeaseLost | QueueUnavailable | None:
        if failure is None:
            hold.closed = True
            self._held.forget(hold)
            return None
        if failure.passing:
            return QueueUnavailable(f"{self._service}: {failure.code}")
        return LeaseLost(_gone(failure))


def _renewal(failure: EntryFailure | None) -> Renewal:
    if failure is None:
        return RENEWED
    return Unanswered(failure.code) if failure.passing else Refused(_gone(failure))


def _gone(failure: EntryFailure) -> str:
    return f"SQS does not accept the receipt any more ({failure.code})"
