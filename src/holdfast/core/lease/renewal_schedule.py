"""The renewal schedule: when the keeper must next act on each lease, and the rules for it."""

from heapq import heapify, heappop, heappush
from itertools import count
from math import floor, inf
from random import Random
from threading import Event, Lock

from holdfast.core.backoff import Backoff
from holdfast.core.lease.lease import Lease, LeaseState

_NOT_SCHEDULED = -inf  # the wake time of an entry that is not on the heap
_EARLY_FRACTION = 0.1  # of the renewal interval
_MIN_SWEEP_ENTRIES = 1024  # a smaller heap is not worth a sweep


class ScheduledLease:
    """A lease that the keeper renews, with the state of its renewals."""

    __slots__ = (
        "asked_at",
        "in_pass",
        "lease",
        "renew_batch",
        "retry_at",
        "source_name",
        "tries",
        "wake_at",
        "warned",
    )

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        # Read these here, where an error reaches the caller of `hold`. In a pass, an error
        # would fail the renewals of all leases.
        self.source_name = lease.source.name
        self.renew_batch = lease.source.renew_batch
        self.wake_at = _NOT_SCHEDULED
        self.asked_at = -inf  # when a renewal was last requested
        self.tries = 0  # consecutive renewals without a response
        self.retry_at = inf
        self.in_pass = False  # a pass has selected it and will request its renewal
        self.warned = False  # NearCap was emitted


# -- rules: pure functions of a lease and a time


def compute_loss_time(lease: Lease) -> float:
    """Return when the lease is lost unless it is renewed or beaten: deadline, cap or stall."""
    at = lease.deadline
    if lease.cap_at is not None and lease.cap_at < at:
        at = lease.cap_at
    if lease.stall_seconds is not None:
        at = min(at, lease.last_beat_at + lease.stall_seconds)
    return at


def find_loss_reason(lease: Lease, now: float) -> str | None:
    """Return why the lease must be given up at `now`, or None while it is good."""
    if now < compute_loss_time(lease):
        return None
    if now < lease.deadline and (lease.cap_at is None or now < lease.cap_at):
        return f"stalled: no beat for {lease.stall_seconds:g} s"
    if lease.cap_at is not None and compute_renewal_seconds(lease, lease.deadline) == 0:
        return f"its cap of {lease.cap_at - lease.claimed_at:g} s is reached"
    if lease.state is LeaseState.AT_RISK:
        return f"no renewal was confirmed before the deadline: {lease.reason}"
    return "its deadline passed before it could be renewed"


def compute_renewal_seconds(lease: Lease, now: float) -> float:
    """Return the seconds to request at `now`: a full lease, what the cap leaves, or 0.

    What the cap leaves is rounded down, because a source with leases of whole seconds (SQS)
    may not accept fractions, and because leases that request the same seconds share a call.
    A gain smaller than that rounding returns 0. Otherwise the last moments before the cap
    would be requested again and again.
    """
    if lease.cap_at is None or lease.cap_at - now >= lease.seconds:
        return lease.seconds
    grain = 1.0 if float(lease.seconds).is_integer() else lease.seconds / 20
    seconds = floor((lease.cap_at - now) / grain) * grain
    return seconds if now + seconds - lease.deadline >= grain else 0.0


def compute_retry_delay(
    tries: int, left_seconds: float, lease_seconds: float, random: Random
) -> float:
    """Return how long to wait after a renewal without a response: exponential, with jitter.

    The delay is at most half of the time left, so that the last tries come close to the
    deadline. It has a minimum, so that these tries do not flood the source.
    """
    backoff = Backoff(first_seconds=lease_seconds * 0.02, max_seconds=left_seconds / 2)
    return max(backoff.delay(tries, random), lease_seconds * 0.005)


class RenewalSchedule:
    """A heap of wake times. Threads may share it.

    The schedule is not notified when a lease is released. An outdated entry stays in the
    heap until it comes up, or until the heap outgrows twice the number of leases that were
    live at the last sweep. So the size follows the live leases, and the cost per entry is
    constant.
    """

    def __init__(self, renew_after: float, cap_warning_seconds: float) -> None:
        self.wake = Event()
        """Set when an entry is due sooner than the sleeping keeper expects."""
        self._renew_after = renew_after
        self._cap_warning_seconds = cap_warning_seconds
        self._entries: dict[Lease, ScheduledLease] = {}
        self._heap: list[tuple[float, int, ScheduledLease]] = []
        self._numbers = count()
        self._max_heap_entries = _MIN_SWEEP_ENTRIES
        self._sleeps_until = -inf
        self._lock = Lock()

    def add(self, lease: Lease) -> bool:
        """Schedule the lease. Return False if it was scheduled already."""
        with self._lock:
            entry = self._entries.get(lease)
            is_new = entry is None
            if entry is None:
                entry = self._entries[lease] = ScheduledLease(lease)
            self._put(entry, self._compute_wake_time(entry, now=-inf))
        return is_new

    def reschedule(self, entry: ScheduledLease, now: float) -> None:
        """Wake for the entry when it is next due, near its cap or over. Forget a dead lease."""
        with self._lock:
            if entry.lease.live:
                self._put(entry, self._compute_wake_time(entry, now))
            else:
                self._entries.pop(entry.lease, None)

    def take(self, until: float) -> ScheduledLease | None:
        """Remove and return the next live entry that wakes by `until`, or return None.

        The caller must pass the entry to `reschedule` afterwards.
        """
        with self._lock:
            if self._find_next_wake_time() > until:
                return None
            _, _, entry = heappop(self._heap)
            entry.wake_at = _NOT_SCHEDULED
            return entry

    def compute_due_time(self, entry: ScheduledLease) -> float:
        """Return when to request the next renewal.

        It counts from the last renewal, whichever caller requested that one.
        """
        if entry.tries:
            return entry.retry_at
        return entry.lease.deadline - (1 - self._renew_after) * entry.lease.seconds

    def compute_early_seconds(self, lease: Lease) -> float:
        """Return how early a renewal may be requested to fill a batch."""
        return _EARLY_FRACTION * self._renew_after * lease.seconds

    def compute_warning_time(self, entry: ScheduledLease) -> float:
        """Return when to emit NearCap. Infinity means no cap, or already emitted."""
        if entry.warned or entry.lease.cap_at is None:
            return inf
        return entry.lease.cap_at - self._cap_warning_seconds

    def get_next_wake_time(self) -> float:
        """Return when the next entry must be handled, or infinity if nothing is held."""
        with self._lock:
            return self._find_next_wake_time()

    def begin_sleep(self) -> float:
        """Return the next wake time, and set `wake` if an earlier one is added meanwhile."""
        with self._lock:
            self._sleeps_until = self._find_next_wake_time()
            return self._sleeps_until

    def end_sleep(self) -> None:
        """Stop setting `wake` and clear it, because the keeper is awake and checks itself."""
        with self._lock:
            self._sleeps_until = -inf
            self.wake.clear()

    def count_live(self) -> int:
        """Return the number of live leases."""
        with self._lock:
            return sum(lease.live for lease in self._entries)

    # -- called with the lock held

    def _compute_wake_time(self, entry: ScheduledLease, now: float) -> float:
        lease = entry.lease
        at = compute_loss_time(lease)
        if entry.in_pass:
            return at  # the pass renews it, but its loss must still be noticed in time
        due_at = self.compute_due_time(entry)
        if due_at < at and (due_at > now or compute_renewal_seconds(lease, now) > 0):
            at = due_at
        return at if lease.cap_at is None else min(at, self.compute_warning_time(entry))

    def _put(self, entry: ScheduledLease, wake_at: float) -> None:
        if wake_at == entry.wake_at:
            return
        entry.wake_at = wake_at
        heappush(self._heap, (wake_at, next(self._numbers), entry))
        if wake_at < self._sleeps_until:
            self._sleeps_until = wake_at
            self.wake.set()
        if len(self._heap) > self._max_heap_entries:
            self._sweep()

    def _find_next_wake_time(self) -> float:
        while self._heap:
            wake_at, _, entry = self._heap[0]
            if entry.wake_at == wake_at and entry.lease.live:
                return wake_at
            heappop(self._heap)
            if not entry.lease.live:
                self._entries.pop(entry.lease, None)
        return inf

    def _sweep(self) -> None:
        live = {}
        for lease, entry in self._entries.items():
            if lease.live:
                live[lease] = entry
            else:
                entry.wake_at = _NOT_SCHEDULED
        self._entries = live
        self._heap = [item for item in self._heap if item[0] == item[2].wake_at]
        heapify(self._heap)
        self._max_heap_entries = max(_MIN_SWEEP_ENTRIES, 2 * len(live))
