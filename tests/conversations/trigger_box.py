"""A queue of triggers of the at-least-once kind: no order, duplicates, visibility."""

from collections.abc import Sequence
from dataclasses import dataclass

from conversations.weather import Fate
from holdfast.conversations.messages import Trigger
from holdfast.core.lease.lease import RENEWED, Lease, Refused, Renewal
from holdfast.testing import ManualClock


@dataclass
class Parcel:
    number: int
    trigger: Trigger
    due: float
    receipts: int = 0


class TriggerBox:
    """All the state of the queue. It is asked through a port that may fail."""

    name = "triggers"
    renew_batch = 10
    lease_seconds = 30.0

    def __init__(self, clock: ManualClock, fate: Fate) -> None:
        self._clock, self._fate = clock, fate
        self._parcels: dict[int, Parcel] = {}
        self._pushed = 0
        self.copies = 1  # of each trigger that is pushed
        self.dead = 0

    def push(self, trigger: Trigger, *, delay_seconds: float = 0.0) -> str:
        due = self._clock.monotonic() + delay_seconds
        for _ in range(self.copies):
            self._pushed += 1
            self._parcels[self._pushed] = Parcel(self._pushed, trigger, due)
        return trigger.id

    # -- receiving

    def receive(self) -> tuple[Trigger, Lease] | None:
        """Any that is visible, invisible to others from now on; but for the odd time."""
        now = self._clock.monotonic()
        visible = [parcel for parcel in self._parcels.values() if parcel.due <= now]
        if not visible:
            return None
        parcel = self._fate.random.choice(visible)
        parcel.receipts += 1
        spent = parcel.receipts > self._fate.weather.most_attempts
        if spent or self._fate.strikes(self._fate.weather.lose_trigger):
            self._bury(parcel)
            return None
        if not self._fate.strikes(self._fate.weather.twice):
            parcel.due = now + self.lease_seconds
        return parcel.trigger, self._lease(parcel, now)

    def _lease(self, parcel: Parcel, now: float) -> Lease:
        return Lease(
            self,
            (parcel.number, parcel.receipts),
            message_id=parcel.trigger.id,
            attempt=parcel.receipts,
            fence=parcel.receipts,
            claimed_at=now,
            seconds=self.lease_seconds,
        )

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        return [self._renew(lease, seconds) for lease in leases]

    def _renew(self, lease: Lease, seconds: float) -> Renewal:
        parcel = self._of(lease)
        if parcel is None:
            return Refused("it was received again, or is gone")
        parcel.due = self._clock.monotonic() + seconds
        return RENEWED

    # -- settling

    def ack(self, lease: Lease) -> None:
        if parcel := self._to_settle(lease):
            del self._parcels[parcel.number]

    def nack(self, lease: Lease, delay_seconds: float) -> None:
        if parcel := self._to_settle(lease):
            parcel.due = self._clock.monotonic() + delay_seconds
            if parcel.receipts >= self._fate.weather.most_attempts:
                self._bury(parcel)

    def _to_settle(self, lease: Lease) -> Parcel | None:
        if self._fate.weather.strict_receipts or self._fate.random.random() < 0.5:
            return self._of(lease)
        return self._parcels.get(lease.handle[0])  # an old receipt may do, says Amazon

    def _of(self, lease: Lease) -> Parcel | None:
        number, receipt = lease.handle
        parcel = self._parcels.get(number)
        return parcel if parcel and parcel.receipts == receipt else None

    def _bury(self, parcel: Parcel) -> None:
        del self._parcels[parcel.number]
        self.dead += 1

    # -- for the world

    def __len__(self) -> int:
        return len(self._parcels)

    @property
    def seconds_to_next(self) -> float | None:
        """Until something is visible; None when the queue is empty."""
        if not self._parcels:
            return None
        first = min(parcel.due for parcel in self._parcels.values())
        return max(0.0, first - self._clock.monotonic())
