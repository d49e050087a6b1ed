"""The renewal schedule: when the keeper must next act on each lease, and the rules for it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import floor, inf
from random import Random

from holdfast.lease.backoff import Backoff
from holdfast.lease.deadline_heap import NOT_SCHEDULED, DeadlineHeap
from holdfast.lease.lease import Lease, LeaseState

_EARLY_FRACTION = 0.1  # of the renewal interval


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


class RenewalSchedule(DeadlineHeap[Lease, ScheduledLease]):
    """The leases that the keeper holds, by the time at which it must next act on each.

    The caller of `take` must pass the entry to `reschedule` afterwards.
    """

    def __init__(
        self, renew_after: float, cap_warning_seconds: float, wake: Callable[[], object]
    ) -> None:
        super().__init__(wake)
        self._renew_after = renew_after
        self._cap_warning_seconds = cap_warning_seconds

    def add_all(self, leases: Iterable[Lease]) -> list[Lease]:
        """Schedule the live leases. Return those that were not scheduled before."""
        added = []
        with self._lock:
            for lease in leases:
                if not lease.live:
                    continue
                entry = self._entries.get(lease)
                if entry is None:
                    entry = self._entries[lease] = ScheduledLease(lease)
                    added.append(lease)
                self._put(entry, self._compute_wake_time(entry, now=-inf))
        return added

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
