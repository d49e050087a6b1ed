"""The keeper's agenda: which lease to look at when, and the rules that say so.

All of this is values in, values out, and holds no lock: the keeper brings its own.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from math import floor, inf
from random import Random

from holdfast.core.lease import Lease, LeaseState
from holdfast.core.queue import Backoff

_NOT_ON_THE_HEAP = -inf
_SMALL = 1024  # entries that are never worth a compaction


class Held:
    """A lease in the keeper's care, and what the lease itself does not know."""

    __slots__ = ("asked_at", "lease", "retry_at", "tries", "waiting", "wake_at", "warned")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.wake_at = _NOT_ON_THE_HEAP
        self.asked_at = -inf  # when a renewal was last asked for
        self.tries = 0  # renewals in a row without an answer
        self.retry_at = inf
        self.waiting = False  # for its batch to go out
        self.warned = False  # of its cap


def over_at(lease: Lease) -> float:
    """When the lease is over unless something happens: deadline, cap or stall."""
    at = lease.deadline
    if lease.cap_at is not None and lease.cap_at < at:
        at = lease.cap_at
    if lease.stall_seconds is not None:
        at = min(at, lease.moved_at + lease.stall_seconds)
    return at


def why_over(lease: Lease, now: float) -> str | None:
    """The reason to give the lease up at `now`, or None while it is good."""
    if now < over_at(lease):
        return None
    if now < lease.deadline and (lease.cap_at is None or now < lease.cap_at):
        return f"stalled: no beat for {lease.stall_seconds:g} s"
    if lease.cap_at is not None and seconds_to_ask(lease, lease.deadline) == 0:
        return f"its cap of {lease.cap_at - lease.claimed_at:g} s is reached"
    if lease.state is LeaseState.AT_RISK:
        return f"no renewal was confirmed before the deadline: {lease.reason}"
    return "its deadline passed before it could be renewed"


def due_at(held: Held, renew_after: float) -> float:
    """When to ask for the next renewal: counted from the last success, whoever had it."""
    if held.tries:
        return held.retry_at
    return held.lease.deadline - (1 - renew_after) * held.lease.seconds


def seconds_to_ask(lease: Lease, now: float) -> float:
    """How long to ask for at `now`: a whole lease, or what the cap leaves, or 0.

    A source whose leases are whole seconds may know no fractions (SQS), so what the cap
    leaves is then rounded down. A gain below that grain is not worth a call; without
    this the last second before the cap would be asked for over and over.
    """
    if lease.cap_at is None or lease.cap_at - now >= lease.seconds:
        return lease.seconds
    whole = float(lease.seconds).is_integer()
    seconds = floor(lease.cap_at - now) if whole else lease.cap_at - now
    grain = 1.0 if whole else lease.seconds * 0.05
    return seconds if now + seconds - lease.deadline >= grain else 0.0


def retry_delay(tries: int, left_seconds: float, lease_seconds: float, random: Random) -> float:
    """How long to leave an unanswering source alone: exponential, with jitter.

    Never longer than half of what is left of the lease, so that the last tries come close
    to the deadline; never so short that they become a storm.
    """
    backoff = Backoff(first_seconds=lease_seconds * 0.02, longest_seconds=left_seconds / 2)
    return max(backoff.delay(tries, random), lease_seconds * 0.005)


class Agenda:
    """A heap of wake times. Outdated entries stay in it until they are met or swept out.

    So nobody has to announce a release, and the heap is swept when it outgrows twice the
    leases that were live at the last sweep: its size follows the live leases, its cost
    per entry stays constant.
    """

    def __init__(self) -> None:
        self.held: dict[Lease, Held] = {}
        self._heap: list[tuple[float, int, Held]] = []
        self._numbers = count()
        self._roomy = _SMALL

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, held: Held, wake_at: float) -> None:
        """Look at it at `wake_at`, and at no other time."""
        held.wake_at = wake_at
        heappush(self._heap, (wake_at, next(self._numbers), held))
        if len(self._heap) > self._roomy:
            self._sweep()

    def take(self, until: float) -> Held | None:
        """Take off the first that is to be looked at by `until`; put it back afterwards."""
        if self.first_at() > until:
            return None
        _, _, held = heappop(self._heap)
        held.wake_at = _NOT_ON_THE_HEAP
        return held

    def first_at(self) -> float:
        """When the next look is due."""
        heap = self._heap
        while heap:
            wake_at, _, held = heap[0]
            if held.wake_at == wake_at and held.lease.live:
                return wake_at
            heappop(heap)
            self._drop_ended(held)
        return inf

    def _drop_ended(self, held: Held) -> None:
        if not held.lease.live:
            self.held.pop(held.lease, None)

    def _sweep(self) -> None:
        self.held = {lease: held for lease, held in self.held.items() if lease.live}
        self._heap = [
            entry
            for entry in self._heap
            if entry[2].wake_at == entry[0] and entry[2].lease.live
        ]
        heapify(self._heap)
        self._roomy = max(_SMALL, 2 * len(self.held))
