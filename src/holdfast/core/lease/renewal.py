"""One pass over the agenda: lose what is over, renew what is due, batch by batch."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

from holdfast.core.clock import Clock
from holdfast.core.errors import HoldfastError
from holdfast.core.events import Events, LeaseAtRisk, LeaseRenewed, NearCap
from holdfast.core.lease.lease import (
    Lease,
    LeaseSource,
    LeaseState,
    Renewal,
    Renewed,
    Unanswered,
)
from holdfast.core.lease.renewal_schedule import (
    RenewalSchedule,
    ScheduledLease,
    over_at,
    retry_delay,
    seconds_to_ask,
    why_over,
)

_log = logging.getLogger("holdfast")

_LOOKED_AT = 200  # entries at most, to fill one batch


class _Group:
    """Leases that one call can carry: same source, same seconds."""

    def __init__(self, first: ScheduledLease, seconds: float) -> None:
        self.source = first.lease.source
        self.seconds = seconds
        self._most = first.renew_batch
        self.waiting: deque[ScheduledLease] = deque()

    @property
    def full(self) -> bool:
        return len(self.waiting) >= self._most

    def cut(self) -> list[ScheduledLease]:
        """The next batch, taken out."""
        size = min(self._most, len(self.waiting))
        return [self.waiting.popleft() for _ in range(size)]


class RenewalPass:
    """One pass in the making. Make it, `run` it once, read its counts."""

    def __init__(
        self, agenda: RenewalSchedule, clock: Clock, events: Events, random: Random
    ) -> None:
        self.renewed = self.at_risk = self.lost = 0
        self._agenda = agenda
        self._clock = clock
        self._events = events
        self._random = random
        self._started_at = clock.monotonic()
        self._groups: dict[tuple[int, float], _Group] = {}
        self._asked: list[ScheduledLease] = []

    def run(self, stopping: Callable[[], bool]) -> None:
        """After each call to a source everything is judged anew: it may have been slow."""
        try:
            while True:
                self._judge()
                group = self._most_urgent()
                if group is None or stopping():
                    break
                self._fill(group)
                self._renew(group)
        finally:
            unasked = [held for group in self._groups.values() for held in group.waiting]
            self._put_back([*unasked, *self._asked])

    # -- who is due

    def _judge(self) -> None:
        """Look at everything whose time has come. Nothing here calls a source."""
        now = self._clock.monotonic()
        while (held := self._agenda.take(now)) is not None:
            if (reason := why_over(held.lease, now)) is not None:
                self.lost += self._lose(held.lease, reason)
                continue
            if self._agenda.warn_at(held) <= now:
                self._warn_of_cap(held, now)
            seconds = seconds_to_ask(held.lease, now)
            if seconds > 0 and self._agenda.due_at(held) <= now and not held.waiting:
                self._line_up(held, seconds)
            self._agenda.schedule(held, now)

    def _line_up(self, held: ScheduledLease, seconds: float) -> None:
        held.waiting = True
        if held.asked_at >= self._started_at:
            # Due again already: leave it to the next pass, or a source that is slower
            # than the interval keeps this one going for ever.
            self._asked.append(held)
            return
        key = id(held.lease.source), seconds
        if key not in self._groups:
            self._groups[key] = _Group(held, seconds)
        self._groups[key].waiting.append(held)

    def _most_urgent(self) -> _Group | None:
        waiting = [group for group in self._groups.values() if group.waiting]
        return min(waiting, key=lambda group: group.waiting[0].lease.deadline, default=None)

    def _fill(self, group: _Group) -> None:
        """Pull forward what is due soon: a call that goes out anyway should go out full."""
        now = self._clock.monotonic()
        until = now + self._agenda.soon_seconds(group.waiting[0].lease)
        looked_at = []
        for _ in range(_LOOKED_AT):
            if group.full or (held := self._agenda.take(until)) is None:
                break
            if self._fits(held, group, now, until):
                self._line_up(held, group.seconds)
            looked_at.append(held)
        for held in looked_at:
            self._agenda.schedule(held, now)

    def _fits(self, held: ScheduledLease, group: _Group, now: float, until: float) -> bool:
        return (
            held.lease.source is group.source
            and not held.waiting
            and held.asked_at < self._started_at
            and seconds_to_ask(held.lease, now) == group.seconds
            and self._agenda.due_at(held) <= until
        )

    # -- asking

    def _renew(self, group: _Group) -> None:
        """Ask for the group's next batch. The source moves no deadline; the answers do."""
        batch = group.cut()
        try:
            asked_at = self._clock.monotonic()
            asking = _askable(batch, asked_at)
            if asking:
                seconds = min(asking.values())  # caps come nearer while leases wait
                answers = _ask(group.source, [held.lease for held in asking], seconds)
                for held, answer in zip(asking, answers, strict=True):
                    self._take_in(held, answer, asked_at, seconds)
        finally:
            self._put_back(batch)

    def _put_back(self, seen_to: Sequence[ScheduledLease]) -> None:
        now = self._clock.monotonic()
        for held in seen_to:
            held.waiting = False
            self._agenda.schedule(held, now)

    def _take_in(
        self, held: ScheduledLease, answer: Renewal, asked_at: float, seconds: float
    ) -> None:
        lease, now = held.lease, self._clock.monotonic()
        before, late_seconds = lease.state, asked_at - self._agenda.due_at(held)
        held.asked_at = asked_at
        with _callbacks_guarded(lease):
            lease.answered(answer, asked_at=asked_at, now=now, seconds=seconds)
        match lease.state:
            case LeaseState.RELEASED:
                pass  # settled during the call: even a refusal is no error then
            case LeaseState.LOST:
                self.lost += before is not LeaseState.LOST
            case LeaseState.HELD if isinstance(answer, Renewed):
                self.renewed += 1
                held.tries = 0
                self._report_renewed(held, max(0.0, late_seconds))
            case _:
                self.at_risk += 1
                self._retry(held, now)
                if before is LeaseState.HELD:
                    self._report_at_risk(held, now)

    def _retry(self, held: ScheduledLease, now: float) -> None:
        held.tries += 1
        left_seconds = held.lease.deadline - now
        held.retry_at = now + retry_delay(
            held.tries, left_seconds, held.lease.seconds, self._random
        )

    # -- telling

    def _lose(self, lease: Lease, reason: str) -> bool:
        before = lease.state
        with _callbacks_guarded(lease):
            lease.lose(reason)
        return lease.state is LeaseState.LOST and before is not LeaseState.LOST

    def _warn_of_cap(self, held: ScheduledLease, now: float) -> None:
        held.warned = True
        if held.lease.cap_at is not None:
            left_seconds = held.lease.cap_at - now
            self._events.emit(NearCap(*_subject(held), left_seconds))

    def _report_renewed(self, held: ScheduledLease, late_seconds: float) -> None:
        if self._events.listening:
            self._events.emit(LeaseRenewed(*_subject(held), late_seconds))

    def _report_at_risk(self, held: ScheduledLease, now: float) -> None:
        left_seconds = held.lease.deadline - now
        self._events.emit(LeaseAtRisk(*_subject(held), held.lease.reason, left_seconds))


def _subject(held: ScheduledLease) -> tuple[str, str, int]:
    return held.source_name, held.lease.message_id, held.lease.attempt


def _askable(batch: Sequence[ScheduledLease], now: float) -> dict[ScheduledLease, float]:
    """Looked at directly before the call: while others were asked for, a lease may have
    been settled (and must not be hidden again) or have run out.
    """
    asking = {}
    for held in batch:
        seconds = seconds_to_ask(held.lease, now)
        if seconds > 0 and held.lease.live and now < over_at(held.lease):
            asking[held] = seconds
    return asking


def _ask(source: LeaseSource, leases: Sequence[Lease], seconds: float) -> Sequence[Renewal]:
    """One answer for each lease, whatever the source does."""
    try:
        answers = list(source.renew(leases, seconds))
    except (Exception, SystemExit) as error:
        # Only our own errors are known to carry no receipt in their text.
        text = str(error) if isinstance(error, HoldfastError) else type(error).__name__
        return [Unanswered(text)] * len(leases)
    if len(answers) != len(leases):
        text = f"{len(answers)} answers to {len(leases)} renewals"
        return [Unanswered(text)] * len(leases)
    return [answer if isinstance(answer, Renewal) else _not_an_answer for answer in answers]


_not_an_answer = Unanswered("what the source returned is not an answer")


@contextmanager
def _callbacks_guarded(lease: Lease) -> Iterator[None]:
    """A loss runs callbacks. One that fails must not cost the other leases theirs.

    SystemExit too: it would end the keeper's thread without a word.
    """
    try:
        yield
    except (Exception, SystemExit):
        _log.exception("a callback failed on the loss of %r", lease)
