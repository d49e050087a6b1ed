"""Making somebody else's deliveries ours: extend them, and see which were extended."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from holdfast.adapters.aws.sqs.queue_client import batches
from holdfast.adapters.aws.sqs.receipt import Receipt
from holdfast.core.backoff import Backoff
from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError
from holdfast.core.lease.lease import Refused, Renewal, Renewed, Unanswered

_TRIES = 3
_AGAIN = Backoff(first_seconds=0.1, factor=2.0, max_seconds=1.0)
_random = Random()

Extend = Callable[[Sequence[Receipt]], Sequence[Renewal]]


def receive_count(raw: Mapping[str, Any]) -> int:
    return int(raw.get("Attributes", {}).get("ApproximateReceiveCount", 1))


class Adoption:
    """One attempt to make deliveries ours. Make it, `run` it once."""

    def __init__(self, extend: Extend, clock: Clock, until: float) -> None:
        self.ours: dict[Receipt, float] = {}
        """Those that SQS hides for us now, and when it was asked to (monotonic)."""
        self.problems: set[str] = set()
        """Why the others are not."""
        self._extend, self._clock, self._until = extend, clock, until

    def run(self, holds: Sequence[Receipt]) -> None:
        """Ten to a call, and each ten once before any is tried again: the others must not
        run out because of a few.
        """
        left = [hold for hold in holds if hold.handle]
        for tries in range(1, _TRIES + 1):
            left = [hold for ten in batches(left) for hold in self._ask(ten)]
            if not left or tries == _TRIES or self._clock.monotonic() >= self._until:
                break
            self._clock.sleep(_AGAIN.delay(tries, _random))

    def _ask(self, ten: Sequence[Receipt]) -> Sequence[Receipt]:
        """Those worth another try."""
        asked_at = self._clock.monotonic()
        if asked_at >= self._until:
            self.problems.add("there is no time left to ask for them")
            return ten
        try:
            answers = self._extend(ten)
        except HoldfastError as error:
            answers = [Unanswered(str(error))] * len(ten)
        again = []
        for hold, answer in zip(ten, answers, strict=True):
            match answer:
                case Renewed():
                    self.ours[hold] = asked_at
                case Refused(reason):
                    self.problems.add(reason)
                case Unanswered(reason):
                    self.problems.add(reason)
                    again.append(hold)
        return again
