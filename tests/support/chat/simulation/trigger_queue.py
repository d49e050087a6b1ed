"""A simulated at-least-once queue of triggers: no order, duplicates, visibility."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.chat.messages import Trigger
from holdfast.lease.lease import RENEWED, Lease, Refused, Renewal
from holdfast.testing import ManualClock
from support.chat.simulation.fault_rates import Fate


@dataclass
class StoredTrigger:
    """A trigger in the queue, with its visibility."""

    number: int
    trigger: Trigger
    due: float
    receipts: int = 0


class TriggerBox:
    """The state of the queue. Processes call it through a port that may fail."""

    name = "triggers"
    renew_batch = 10
    lease_seconds = 30.0

    def __init__(self, clock: ManualClock, fate: Fate) -> None:
        self._clock, self._fate = clock, fate
        self._triggers: dict[int, StoredTrigger] = {}
        self._pushed = 0
        self.copies = 1  # of each trigger that is pushed
        self.dead = 0

    def push(self, trigger: Trigger, *, delay_seconds: float = 0.0) -> str:
        due = self._clock.monotonic() + delay_seconds
        for _ in range(self.copies):
            self._pushed += 1
            self._triggers[self._pushed] = StoredTrigger(self._pushed, trigger, due)
        return trigger.id

    # -- receiving

    def receive(self) -> tuple[Trigger, Lease] | None:
        """Return any visible trigger and hide it from others, except sometimes."""
        now = self._clock.monotonic()
        visible = [stored for stored in self._triggers.values() if stored.due <= now]
        if not visible:
            return None
        stored = self._fate.random.choice(visible)
        stored.receipts += 1
        spent = stored.receipts > self._fate.weather.max_attempts
        if spent or self._fate.strikes(self._fate.weather.lose_trigger):
            self._dead_letter(stored)
            return None
        if not self._fate.strikes(self._fate.weather.twice):
            stored.due = now + self.lease_seconds
        return stored.trigger, self._make_lease(stored, now)

    def _make_lease(self, stored: StoredTrigger, now: float) -> Lease:
        return Lease(
            self,
            (stored.number, stored.receipts),
            message_id=stored.trigger.id,
            attempt=stored.receipts,
            fence=stored.receipts,
            claimed_at=now,
            seconds=self.lease_seconds,
        )

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        return [self._renew(lease, seconds) for lease in leases]

    def _renew(self, lease: Lease, seconds: float) -> Renewal:
        stored = self._find(lease)
        if stored is None:
            return Refused("it was received again, or it is gone")
        stored.due = self._clock.monotonic() + seconds
        return RENEWED

    # -- settling

    def ack(self, lease: Lease) -> None:
        if stored := self._find_to_settle(lease):
            del self._triggers[stored.number]

    def nack(self, lease: Lease, delay_seconds: float) -> None:
        if stored := self._find_to_settle(lease):
            stored.due = self._clock.monotonic() + delay_seconds
            if stored.receipts >= self._fate.weather.max_attempts:
                self._dead_letter(stored)

    def _find_to_settle(self, lease: Lease) -> StoredTrigger | None:
        if self._fate.weather.strict_receipts or self._fate.random.random() < 0.5:
            return self._find(lease)
        return self._triggers.get(lease.handle[0])  # AWS documents that an old receipt may work

    def _find(self, lease: Lease) -> StoredTrigger | None:
        number, receipt = lease.handle
        stored = self._triggers.get(number)
        return stored if stored and stored.receipts == receipt else None

    def _dead_letter(self, stored: StoredTrigger) -> None:
        del self._triggers[stored.number]
        self.dead += 1

    # -- for the world

    def __len__(self) -> int:
        return len(self._triggers)

    @property
    def seconds_to_next(self) -> float | None:
        """Return the time until a trigger is visible, or None if the queue is empty."""
        if not self._triggers:
            return None
        first = min(stored.due for stored in self._triggers.values())
        return max(0.0, first - self._clock.monotonic())
