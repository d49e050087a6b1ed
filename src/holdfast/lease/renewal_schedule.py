"""The renewal schedule: when the keeper must next act on each lease, and the rules for it.

It is a heap of entries by the time at which each is due. Heartbeats are kept in another one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from math import floor, inf
from random import Random
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar

from holdfast.lease.backoff import Backoff
from holdfast.lease.lease import FINAL_STATES, Lease, LeaseSource, LeaseState

_EARLY_FRACTION = 0.1  # of the renewal interval

NOT_SCHEDULED = -inf
"""The due time of an entry that is not on the heap."""

_MIN_SWEEP_ITEMS = 1024  # a smaller heap is not worth a sweep


class HeapEntry(Protocol):
    """What the heap needs of an entry. Only the heap sets `due_at`."""

    due_at: float

    @property
    def key(self) -> Any:
        """What the entry is about."""

    @property
    def live(self) -> bool:
        """Whether the entry is still wanted. False is final while it is on the heap."""


K = TypeVar("K")
E = TypeVar("E", bound=HeapEntry)


class DeadlineHeap(Generic[K, E]):
    """The live entries by key, and a heap of those that are scheduled. Threads may share it.

    A schedule is a heap with its own rules of when an entry is due. It takes the lock for
    steps that belong together.

    The heap is not notified when an entry dies or is scheduled anew. An outdated item stays
    in the heap until it comes up, or until the heap outgrows twice the number of entries
    that were live at the last sweep. So the size follows the live entries, and the cost per
    entry is constant.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        # All entries, scheduled or not. The schedule adds them; the heap removes dead ones.
        self._entries: dict[K, E] = {}
        self._lock = RLock()
        self._wake = wake
        self._awaited_at = NOT_SCHEDULED
        self._items: list[tuple[float, int, E]] = []
        self._numbers = count()
        self._max_items = _MIN_SWEEP_ITEMS

    def take(self, until: float) -> E | None:
        """Remove and return the live entry that is due first, if it is due by `until`.

        The entry stays known. Put it again to schedule it.
        """
        with self._lock:
            if self._drop_outdated() > until or not self._items:
                return None
            entry = heappop(self._items)[2]
            entry.due_at = NOT_SCHEDULED
            return entry

    def await_next(self) -> float:
        """Return when the next entry is due, or infinity if none is scheduled.

        From now on `wake` is called as soon as an entry becomes due sooner than that.
        """
        with self._lock:
            self._awaited_at = self._drop_outdated()
            return self._awaited_at

    # -- under the lock

    def _put(self, entry: E, due_at: float) -> None:
        """Schedule the entry, or schedule it anew."""
        if due_at == entry.due_at:
            return
        entry.due_at = due_at
        heappush(self._items, (due_at, next(self._numbers), entry))
        if due_at < self._awaited_at:
            self._awaited_at = due_at
            self._wake()
        if len(self._items) > self._max_items:
            self._sweep()

    def _forget(self, entry: E) -> None:
        """Remove a dead entry, unless another one has its key by now."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def _drop_outdated(self) -> float:
        while self._items:
            due_at, _, entry = self._items[0]
            if entry.due_at == due_at and entry.live:
                return due_at
            heappop(self._items)
            if not entry.live:
                self._forget(entry)
        return inf

    def _sweep(self) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if entry.live}
        self._items = [
            item for item in self._items if item[2].due_at == item[0] and item[2].live
        ]
        heapify(self._items)
        self._max_items = max(_MIN_SWEEP_ITEMS, 2 * len(self._entries))


@dataclass(eq=False, slots=True)
class ScheduledLease:
    """A lease that the keeper renews, with the state of its renewals."""

    lease: Lease
    source_name: str = field(init=False)
    renew_batch: int = field(init=False)
    due_at: float = NOT_SCHEDULED  # when the keeper must next act on it
    asked_at: float = -inf  # when a renewal was last requested
    tries: int = 0  # consecutive renewals without a response
    retry_at: float = inf
    in_pass: bool = False  # a pass has selected it and will request its renewal
    warned: bool = False  # NearCap was emitted

    def __post_init__(self) -> None:
        # Read these here, where an error reaches the caller of `hold`. In a pass, an error
        # would fail the renewals of all leases.
        self.source_name = self.lease.source.name
        self.renew_batch = self.lease.source.renew_batch

    @property
    def key(self) -> Lease:
        """The lease itself."""
        return self.lease

    @property
    def live(self) -> bool:
        """Whether the lease is held. The schedule is not notified when it is released."""
        return self.lease.live


# -- rules: pure functions of a source, or of a lease and a time


def check_source(source: LeaseSource) -> None:
    """Raise TypeError if the keeper cannot use `source`, and name what is wrong with it."""
    problem = None
    if not isinstance(name := getattr(source, "name", None), str):
        problem = f"its name must be text, not {name!r}"
    batch = getattr(source, "renew_batch", None)
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        problem = f"its renew_batch must be a whole number of 1 or more, not {batch!r}"
    if not callable(renew := getattr(source, "renew", None)):
        problem = f"its renew must be a method, not {renew!r}"
    if problem is not None:
        raise TypeError(f"{type(source).__name__} cannot be a source of leases: {problem}")


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


class RenewalSchedule(DeadlineHeap[Lease, ScheduledLease]):
    """The leases that the keeper holds, by the time at which it must next act on each.

    The caller of `take` must pass the entry to `reschedule` afterwards.
    """

    def __init__(
        self,
        renew_after: float,
        cap_warning_seconds: float,
        wake: Callable[[], object],
        on_lost: Callable[[Lease], None],
    ) -> None:
        super().__init__(wake)
        self._renew_after = renew_after
        self._cap_warning_seconds = cap_warning_seconds
        self._on_lost = on_lost

    def add_all(self, leases: Sequence[Lease]) -> None:
        """Schedule the live leases, and have `on_lost` called for each that is lost.

        Raises TypeError, and schedules none, if a source is not a LeaseSource.
        """
        for source in {id(lease.source): lease.source for lease in leases}.values():
            check_source(source)
        added = []
        with self._lock:
            for lease in leases:
                if lease.state in FINAL_STATES:
                    continue
                entry = self._entries.get(lease)
                if entry is None:
                    entry = self._entries[lease] = ScheduledLease(lease)
                    added.append(lease)
                self._put(entry, self._compute_wake_time(entry, now=-inf))
        for lease in added:
            lease.on_lost(self._on_lost)

    def reschedule(self, entry: ScheduledLease, now: float) -> None:
        """Wake for the entry when it is next due, near its cap or over. Forget a dead lease."""
        with self._lock:
            if entry.lease.live:
                self._put(entry, self._compute_wake_time(entry, now))
            else:
                self._forget(entry)

    def count_live(self) -> int:
        """Return the number of live leases."""
        with self._lock:
            return sum(lease.live for lease in self._entries)

    # -- times of one entry

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

    def _compute_wake_time(self, entry: ScheduledLease, now: float) -> float:
        lease = entry.lease
        at = compute_loss_time(lease)
        if entry.in_pass:
            return at  # the pass renews it, but its loss must still be noticed in time
        due_at = self.compute_due_time(entry)
        if due_at < at and (due_at > now or compute_renewal_seconds(lease, now) > 0):
            at = due_at
        return at if lease.cap_at is None else min(at, self.compute_warning_time(entry))
