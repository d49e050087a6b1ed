"""A lease source that shows the tests when leases really end, and a helper to pass time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.lease.keeper import LeaseKeeper, Tick
from holdfast.lease.lease import RENEWED, Lease, Renewal, Renewed
from holdfast.testing.clock import ManualClock


@dataclass(frozen=True)
class Call:
    """One call of `renew`."""

    at: float
    leases: tuple[Lease, ...]
    seconds: float


class FakeSource:
    """Grants every renewal unless `answer` is replaced, and records each call."""

    def __init__(self, clock: ManualClock, name: str = "fake", renew_batch: int = 10) -> None:
        self.name = name
        self.renew_batch = renew_batch
        self.calls: list[Call] = []
        self.ends_at: dict[Lease, float] = {}  # when another worker could claim the message
        self.misuse: list[str] = []
        self.answer: Callable[[Lease], Renewal] = lambda lease: RENEWED
        self.before_answering: Callable[[], None] = lambda: None
        self._clock = clock

    def lease(
        self, message_id: str = "m", seconds: float = 60.0, cap_seconds: float | None = None
    ) -> Lease:
        now = self._clock.monotonic()
        cap_at = None if cap_seconds is None else now + cap_seconds
        lease = Lease(
            self,
            handle=f"secret-receipt-{message_id}",
            message_id=message_id,
            attempt=1,
            fence=1,
            claimed_at=now,
            seconds=seconds,
            cap_at=cap_at,
        )
        self.ends_at[lease] = now + seconds
        return lease

    def leases(self, count: int, seconds: float = 60.0) -> list[Lease]:
        return [self.lease(f"m{number}", seconds) for number in range(count)]

    def renew(self, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
        now = self._clock.monotonic()
        self.misuse += [
            f"asked for {lease!r} at {now}"
            for lease in leases
            if not lease.live or now >= lease.deadline
        ]
        assert len(leases) <= self.renew_batch
        self.calls.append(Call(now, tuple(leases), seconds))
        self.before_answering()
        answers = [self.answer(lease) for lease in leases]
        for lease, answer in zip(leases, answers, strict=True):
            if isinstance(answer, Renewed):
                self.ends_at[lease] = self._clock.monotonic() + seconds
        return answers

    @property
    def asked(self) -> list[str]:
        """The ids of all leases that were requested, in order."""
        return [lease.message_id for call in self.calls for lease in call.leases]


def let_pass(clock: ManualClock, keeper: LeaseKeeper, seconds: float) -> list[Tick]:
    """Advance the clock, and run a pass whenever one is due, as the keeper's thread would."""
    until = clock.monotonic() + seconds
    ticks = [keeper.tick()]
    while (next_at := ticks[-1].next_at) <= until:
        clock.advance(max(0.0, next_at - clock.monotonic()))
        ticks.append(keeper.tick())
    clock.advance(max(0.0, until - clock.monotonic()))
    return ticks
