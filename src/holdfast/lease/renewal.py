"""One renewal pass: lose the leases that are over and renew those that are due, in batches."""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.events import (
    Event,
    Events,
    LeaseAtRisk,
    LeaseRenewed,
    NearCap,
    RenewalFailed,
)
from holdfast.lease.clock import Clock
from holdfast.lease.lease import (
    Lease,
    LeaseSource,
    LeaseState,
    Refused,
    Renewal,
    Renewed,
    Unanswered,
)
from holdfast.lease.renewal_schedule import (
    RenewalSchedule,
    ScheduledLease,
    compute_loss_time,
    compute_renewal_seconds,
    compute_retry_delay,
    find_loss_reason,
)

_MAX_FILL_ENTRIES = 200  # entries to inspect when filling one batch


class _Group:
    """Leases that can share a call, because they have the same source and seconds."""

    def __init__(self, first: ScheduledLease, seconds: float) -> None:
        self.source = first.lease.source
        self.seconds = seconds
        self._max_batch = first.renew_batch
        self.waiting: deque[ScheduledLease] = deque()

    @property
    def full(self) -> bool:
        """Whether the next batch is full."""
        return len(self.waiting) >= self._max_batch

    def take_batch(self) -> list[ScheduledLease]:
        """Remove and return the next batch."""
        size = min(self._max_batch, len(self.waiting))
        return [self.waiting.popleft() for _ in range(size)]


class RenewalPass:
    """One pass over the schedule. Create it, call `run` once, then read its counts."""

    def __init__(
        self, schedule: RenewalSchedule, clock: Clock, events: Events, random: Random
    ) -> None:
        self.renewed = self.at_risk = self.lost = 0
        self._schedule = schedule
        self._clock = clock
        self._events = events
        self._random = random
        self._started_at = clock.monotonic()
        self._groups: dict[tuple[int, float], _Group] = {}
        self._deferred: list[ScheduledLease] = []

    def run(self, stopping: Callable[[], bool]) -> None:
        """Renew everything that is due, or end before the next call if `stopping()` is true.

        All leases are checked again after each call to a source, because the call may have
        been slow.
        """
        try:
            while True:
                self._check_due()
                group = self._find_most_urgent_group()
                if group is None or stopping():
                    break
                self._fill(group)
                self._renew_batch(group)
        finally:
            waiting = [entry for group in self._groups.values() for entry in group.waiting]
            self._put_back([*waiting, *self._deferred])

    # -- selecting leases

    def _check_due(self) -> None:
        """Handle every entry whose wake time has come. This calls no source."""
        now = self._clock.monotonic()
        while (entry := self._schedule.take(now)) is not None:
            if (reason := find_loss_reason(entry.lease, now)) is not None:
                self.lost += entry.lease.lose(reason)
                continue
            if self._schedule.compute_warning_time(entry) <= now:
                self._warn_of_cap(entry, now)
            seconds = compute_renewal_seconds(entry.lease, now)
            is_due = self._schedule.compute_due_time(entry) <= now
            if seconds > 0 and is_due and not entry.in_pass:
                self._select(entry, seconds)
            self._schedule.reschedule(entry, now)

    def _select(self, entry: ScheduledLease, seconds: float) -> None:
        entry.in_pass = True
        if entry.asked_at >= self._started_at:
            # It was renewed in this pass and is due again. Leave it to the next pass;
            # otherwise a source slower than the interval would keep this pass running
            # forever.
            self._deferred.append(entry)
            return
        key = id(entry.lease.source), seconds
        if key not in self._groups:
            self._groups[key] = _Group(entry, seconds)
        self._groups[key].waiting.append(entry)

    def _find_most_urgent_group(self) -> _Group | None:
        waiting = [group for group in self._groups.values() if group.waiting]
        return min(waiting, key=lambda group: group.waiting[0].lease.deadline, default=None)

    def _fill(self, group: _Group) -> None:
        """Add leases that are due soon, because the call is made anyway and can carry them."""
        now = self._clock.monotonic()
        until = now + self._schedule.compute_early_seconds(group.waiting[0].lease)
        taken = []
        for _ in range(_MAX_FILL_ENTRIES):
            if group.full or (entry := self._schedule.take(until)) is None:
                break
            if self._fits(entry, group, now, until):
                self._select(entry, group.seconds)
            taken.append(entry)
        for entry in taken:
            self._schedule.reschedule(entry, now)

    def _fits(self, entry: ScheduledLease, group: _Group, now: float, until: float) -> bool:
        return (
            entry.lease.source is group.source
            and not entry.in_pass
            and entry.asked_at < self._started_at
            and compute_renewal_seconds(entry.lease, now) == group.seconds
            and self._schedule.compute_due_time(entry) <= until
        )

    # -- calling the source

    def _renew_batch(self, group: _Group) -> None:
        """Request the group's next batch. The source moves no deadline; the results do."""
        batch = group.take_batch()
        try:
            asked_at = self._clock.monotonic()
            seconds_by_entry = _select_renewable(batch, asked_at)
            if seconds_by_entry:
                # A cap comes nearer while its lease waits, so request what fits all of them.
                seconds = min(seconds_by_entry.values())
                leases = [entry.lease for entry in seconds_by_entry]
                results = _call_source(group.source, leases, seconds)
                for entry, result in zip(seconds_by_entry, results, strict=True):
                    self._apply(entry, result, asked_at, seconds)
        finally:
            self._put_back(batch)

    def _put_back(self, entries: Sequence[ScheduledLease]) -> None:
        now = self._clock.monotonic()
        for entry in entries:
            entry.in_pass = False
            self._schedule.reschedule(entry, now)

    def _apply(
        self, entry: ScheduledLease, result: Renewal, asked_at: float, seconds: float
    ) -> None:
        lease, now = entry.lease, self._clock.monotonic()
        before = lease.state
        late_seconds = asked_at - self._schedule.compute_due_time(entry)
        entry.asked_at = asked_at
        lease.apply_renewal(result, asked_at=asked_at, now=now, seconds=seconds)
        match lease.state:
            case LeaseState.RELEASED:
                pass  # settled during the call, so even a refusal is expected
            case LeaseState.LOST:
                self.lost += before is not LeaseState.LOST
                self._emit(RenewalFailed, entry, _FAILED_OUTCOMES[type(result)])
            case LeaseState.HELD if isinstance(result, Renewed):
                self.renewed += 1
                entry.tries = 0
                self._emit(LeaseRenewed, entry, max(0.0, late_seconds), lease.deadline)
            case _:
                self.at_risk += 1
                self._schedule_retry(entry, now)
                self._emit(RenewalFailed, entry, _FAILED_OUTCOMES[type(result)])
                if before is LeaseState.HELD:
                    self._emit(LeaseAtRisk, entry, lease.reason, lease.deadline - now)

    def _schedule_retry(self, entry: ScheduledLease, now: float) -> None:
        entry.tries += 1
        left_seconds = entry.lease.deadline - now
        entry.retry_at = now + compute_retry_delay(
            entry.tries, left_seconds, entry.lease.seconds, self._random
        )

    # -- reporting

    def _warn_of_cap(self, entry: ScheduledLease, now: float) -> None:
        entry.warned = True
        if entry.lease.cap_at is not None:
            self._emit(NearCap, entry, entry.lease.cap_at - now)

    def _emit(self, kind: Callable[..., Event], entry: ScheduledLease, *details: Any) -> None:
        if self._events.has_subscribers:
            lease = entry.lease
            self._events.emit(
                kind(entry.source_name, lease.message_id, lease.attempt, *details)
            )


def _select_renewable(
    batch: Sequence[ScheduledLease], now: float
) -> dict[ScheduledLease, float]:
    """Return the entries to request with their seconds, checked directly before the call.

    While other batches were requested, a lease may have run out or have been settled. A
    settled message must not be hidden again.
    """
    renewable = {}
    for entry in batch:
        seconds = compute_renewal_seconds(entry.lease, now)
        if seconds > 0 and entry.lease.live and now < compute_loss_time(entry.lease):
            renewable[entry] = seconds
    return renewable


def _call_source(
    source: LeaseSource, leases: Sequence[Lease], seconds: float
) -> Sequence[Renewal]:
    """Return one result for each lease, whatever the source raises or returns."""
    try:
        results = list(source.renew(leases, seconds))
    except (Exception, SystemExit) as error:
        # Only Holdfast's own errors are known to have no receipt in their text.
        text = str(error) if isinstance(error, HoldfastError) else type(error).__name__
        return [Unanswered(text)] * len(leases)
    if len(results) != len(leases):
        text = f"the source returned {len(results)} results for {len(leases)} renewals"
        return [Unanswered(text)] * len(leases)
    return [result if isinstance(result, Renewal) else _INVALID_RESULT for result in results]


_INVALID_RESULT = Unanswered("the source returned an invalid result")

# A renewal that was confirmed and still failed was confirmed after the deadline.
_FAILED_OUTCOMES = {Renewed: "late", Refused: "refused", Unanswered: "unanswered"}
