"""The keeper's agenda: which lease to look at when, and the rules that say so."""

from heapq import heapify, heappop, heappush
from itertools import count
from math import floor, inf
from random import Random
from threading import Event, Lock

from holdfast.core.backoff import Backoff
from holdfast.core.lease.lease import Lease, LeaseState

_OFF = -inf  # the wake time of what is not on the heap
_SOON = 0.1  # of the renewal interval
_SMALL = 1024  # heap entries that are never worth a sweep


class ScheduledLease:
    """A lease in the keeper's care, and what the lease itself does not know."""

    __slots__ = (
        "asked_at",
        "lease",
        "renew_batch",
        "retry_at",
        "source_name",
        "tries",
        "waiting",
        "wake_at",
        "warned",
    )

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        # Read once, where an error reaches the caller: in a pass it would cost all leases.
        self.source_name = lease.source.name
        self.renew_batch = lease.source.renew_batch
        self.wake_at = _OFF
        self.asked_at = -inf  # when a renewal was last asked for
        self.tries = 0  # renewals in a row without an answer
        self.retry_at = inf
        self.waiting = False  # for its turn in a pass
        self.warned = False  # of its cap


# -- the rules: values in, values out


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


def seconds_to_ask(lease: Lease, now: float) -> float:
    """How long to ask for at `now`: a whole lease, or what the cap leaves, or 0.

    What the cap leaves is rounded down: a source whose leases are whole seconds may know
    no fractions (SQS), and leases that ask for the same share a call. A gain below that
    grain is not worth one; otherwise the last moments would be asked for over and over.
    """
    if lease.cap_at is None or lease.cap_at - now >= lease.seconds:
        return lease.seconds
    grain = 1.0 if float(lease.seconds).is_integer() else lease.seconds / 20
    seconds = floor((lease.cap_at - now) / grain) * grain
    return seconds if now + seconds - lease.deadline >= grain else 0.0


def retry_delay(tries: int, left_seconds: float, lease_seconds: float, random: Random) -> float:
    """How long to leave an unanswering source alone: exponential, with jitter.

    Never longer than half of what is left of the lease, so that the last tries come close
    to the deadline; never so short that they become a storm.
    """
    backoff = Backoff(first_seconds=lease_seconds * 0.02, max_seconds=left_seconds / 2)
    return max(backoff.delay(tries, random), lease_seconds * 0.005)


class RenewalSchedule:
    """A heap of wake times, safe to share between threads.

    Nobody announces a release: entries that are outdated stay in the heap until they are
    met, or until the heap outgrows twice the leases that were live at the last sweep. So
    its size follows the live leases, and its cost per entry stays constant.
    """

    def __init__(self, renew_after: float, cap_warning_seconds: float) -> None:
        self.wake = Event()
        """Set when something is to be looked at sooner than the sleeper knows."""
        self._renew_after = renew_after
        self._cap_warning_seconds = cap_warning_seconds
        self._held: dict[Lease, ScheduledLease] = {}
        self._heap: list[tuple[float, int, ScheduledLease]] = []
        self._numbers = count()
        self._roomy = _SMALL
        self._sleeps_until = -inf
        self._lock = Lock()

    def add(self, lease: Lease) -> bool:
        """Look after the lease from now on. False when that was so already."""
        with self._lock:
            held = self._held.get(lease)
            new = held is None
            if held is None:
                held = self._held[lease] = ScheduledLease(lease)
            self._put(held, self._wake_at(held, now=-inf))
        return new

    def schedule(self, held: ScheduledLease, now: float) -> None:
        """Look at it again when there is something to do: due, near its cap, or over."""
        with self._lock:
            if held.lease.live:
                self._put(held, self._wake_at(held, now))
            else:
                self._held.pop(held.lease, None)

    def take(self, until: float) -> ScheduledLease | None:
        """Take off the next live one to be looked at by `until`. Put it back afterwards."""
        with self._lock:
            if self._first_at() > until:
                return None
            _, _, held = heappop(self._heap)
            held.wake_at = _OFF
            return held

    def due_at(self, held: ScheduledLease) -> float:
        """When to ask for its next renewal: counted from the last, whoever asked for it."""
        if held.tries:
            return held.retry_at
        return held.lease.deadline - (1 - self._renew_after) * held.lease.seconds

    def soon_seconds(self, lease: Lease) -> float:
        """How early a renewal may go out to fill a batch."""
        return _SOON * self._renew_after * lease.seconds

    def warn_at(self, held: ScheduledLease) -> float:
        """When to warn of its cap; infinity when there is none, or that was done."""
        if held.warned or held.lease.cap_at is None:
            return inf
        return held.lease.cap_at - self._cap_warning_seconds

    def first_at(self) -> float:
        """When the next look is due; infinity when nothing is held."""
        with self._lock:
            return self._first_at()

    def sleep_until(self) -> float:
        """The same, for somebody who sleeps on `wake` until then."""
        with self._lock:
            self._sleeps_until = self._first_at()
            return self._sleeps_until

    def awake(self) -> None:
        """The sleeper looks by itself now, and need not be woken."""
        with self._lock:
            self._sleeps_until = -inf
            self.wake.clear()

    def live(self) -> int:
        with self._lock:
            return sum(lease.live for lease in self._held)

    # -- under the lock

    def _wake_at(self, held: ScheduledLease, now: float) -> float:
        lease = held.lease
        at = over_at(lease)
        if held.waiting:
            return at  # it is being seen to, but its end stays in sight
        due = self.due_at(held)
        if due < at and (due > now or seconds_to_ask(lease, now) > 0):
            at = due
        return at if lease.cap_at is None else min(at, self.warn_at(held))

    def _put(self, held: ScheduledLease, wake_at: float) -> None:
        if wake_at == held.wake_at:
            return
        held.wake_at = wake_at
        heappush(self._heap, (wake_at, next(self._numbers), held))
        if wake_at < self._sleeps_until:
            self._sleeps_until = wake_at
            self.wake.set()
        if len(self._heap) > self._roomy:
            self._sweep()

    def _first_at(self) -> float:
        while self._heap:
            wake_at, _, held = self._heap[0]
            if held.wake_at == wake_at and held.lease.live:
                return wake_at
            heappop(self._heap)
            if not held.lease.live:
                self._held.pop(held.lease, None)
        return inf

    def _sweep(self) -> None:
        live = {}
        for lease, held in self._held.items():
            if lease.live:
                live[lease] = held
            else:
                held.wake_at = _OFF
        self._held = live
        self._heap = [entry for entry in self._heap if entry[0] == entry[2].wake_at]
        heapify(self._heap)
        self._roomy = max(_SMALL, 2 * len(live))
