"""Adopt deliveries that another receiver made: extend them, and record which were extended."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from holdfast.adapters.aws.sqs.queue_client import split_batches
from holdfast.adapters.aws.sqs.receipt import Receipt
from holdfast.core.backoff import Backoff
from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError
from holdfast.core.lease.lease import Refused, Renewal, Renewed, Unanswered

_MAX_TRIES = 3
_BACKOFF = Backoff(first_seconds=0.1, factor=2.0, max_seconds=1.0)
_random = Random()

Extend = Callable[[Sequence[Receipt]], Sequence[Renewal]]


def get_receive_count(raw: Mapping[str, Any]) -> int:
    """Return how often SQS has delivered the message."""
    return int(raw.get("Attributes", {}).get("ApproximateReceiveCount", 1))


class Adoption:
    """One attempt to adopt deliveries. `run` may be called once."""

    def __init__(self, extend: Extend, clock: Clock, until: float) -> None:
        self.adopted: dict[Receipt, float] = {}
        """The receipts that SQS extended, with the monotonic time before the call."""
        self.problems: set[str] = set()
        """Why the others were not extended."""
        self._extend, self._clock, self._until = extend, clock, until

    def run(self, receipts: Sequence[Receipt]) -> None:
        """Extend the receipts, ten to a call.

        Each batch is tried once before any is tried again, because a few failing receipts
        must not make the others expire.
        """
        left = [receipt for receipt in receipts if receipt.handle]
        for tries in range(1, _MAX_TRIES + 1):
            left = [receipt for batch in split_batches(left) for receipt in self._adopt(batch)]
            if not left or tries == _MAX_TRIES or self._clock.monotonic() >= self._until:
                break
            self._clock.sleep(_BACKOFF.delay(tries, _random))

    def _adopt(self, batch: Sequence[Receipt]) -> Sequence[Receipt]:
        """Extend a batch and return the receipts that are worth another try."""
        asked_at = self._clock.monotonic()
        if asked_at >= self._until:
            self.problems.add("there is no time left to extend them")
            return batch
        try:
            renewals = self._extend(batch)
        except HoldfastError as error:
            renewals = [Unanswered(str(error))] * len(batch)
        retry = []
        for receipt, renewal in zip(batch, renewals, strict=True):
            match renewal:
                case Renewed():
                    self.adopted[receipt] = asked_at
                case Refused(reason):
                    self.problems.add(reason)
                case Unanswered(reason):
                    self.problems.add(reason)
                    retry.append(receipt)
        return retry
