"""The keeper: one thread that renews every lease held, whatever its kind.

    hold ──▶ agenda ──▶ judge ─┬─ past its deadline, cap or stall ─▶ LOST, no call
               ▲               ├─ near its cap ─▶ warned, once
               │               └─ due ─▶ batch of one source ─▶ renew
               │                                                  │ one answer each
               └── at the next renewal or retry ◀─────────────────┘

Calls to sources are made one after another, most urgent lease first. A slow source thus
delays the renewals of the others, but never silently: all deadlines are judged again
after each call, and a lease that ran out meanwhile is LOST before the next call goes out.
Give clients timeouts well below the lease, or the source a keeper of its own.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from threading import Condition, Event, Thread
from weakref import WeakSet

from holdfast.core.agenda import (
    Agenda,
    Held,
    due_at,
    over_at,
    seconds_to_ask,
    why_over,
)
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Events, LeaseGone, NearCap
from holdfast.core.lease import (
    Lease,
    LeaseSource,
)

_log = logging.getLogger("holdfast")

_SOON = 0.1  # of the interval: how early a renewal may go out to fill a batch
_LOOKED_AT = 200  # entries at most, to fill one batch


@dataclass(frozen=True, slots=True)
class Tick:
    """What one pass did."""

    renewed: int
    at_risk: int  # asked for and unanswered
    lost: int
    next_at: float | None  # monotonic; when the next pass has something to do


class _Group:
    """Leases one call can carry: same source, same seconds."""

    def __init__(self, source: LeaseSource, seconds: float) -> None:
        self.source = source
        self.seconds = seconds
        self.waiting: deque[Held] = deque()

    def add(self, held: Held) -> None:
        held.waiting = True
        self.waiting.append(held)

    def cut(self) -> list[Held]:
        """The next batch, taken out."""
        size = min(self.source.renew_batch, len(self.waiting))
        batch = [self.waiting.popleft() for _ in range(size)]
        for held in batch:
            held.waiting = False
        return batch


class _Pass:
    """One pass in the making."""

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.groups: dict[tuple[int, float], _Group] = {}
        self.asked_already: list[Held] = []
        self.renewed = self.at_risk = self.lost = 0

    def add(self, held: Held, seconds: float) -> None:
        """Let it wait for its batch. One renewal per pass, or a slow source never ends it."""
        if held.asked_at >= self.started_at:
            self.asked_already.append(held)
        elif not held.waiting:
            source = held.lease.source
            key = id(source), seconds
            if key not in self.groups:
                self.groups[key] = _Group(source, seconds)
            self.groups[key].add(held)

    def most_urgent(self) -> _Group | None:
        waiting = [group for group in self.groups.values() if group.waiting]
        return min(waiting, key=lambda group: group.waiting[0].lease.deadline, default=None)

    def left_over(self) -> list[Held]:
        rest = [held for group in self.groups.values() for held in group.waiting]
        for held in rest:
            held.waiting = False
        return rest + self.asked_already


class LeaseKeeper:
    """Renews what is held until it is released or lost. Safe to share between threads.

    A renewal is asked for when `renew_after` of the lease has passed since the last one.
    `start` and `stop` may be called from anywhere, also from a lease's callbacks.
    """

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
        *,
        renew_after: float = 1 / 3,
        cap_warning_seconds: float = 60.0,
    ) -> None:
        if not 0 < renew_after < 1:
            raise ValueError(f"renew_after must be between 0 and 1, not {renew_after}")
        self._clock = clock
        self._events = events or Events()
        self._renew_after = renew_after
        self._cap_warning_seconds = cap_warning_seconds
        self._random = Random()
        self._begin()
        _keepers.add(self)

    def _begin(self) -> None:
        """Nothing held, nothing running: how a keeper starts, and a forked child's copy."""
        self._lock = Condition()
        self._agenda = Agenda()
        self._thread: Thread | None = None
        self._ended: Thread | None = None  # it may still be in its last instructions
        self._wanted = False
        self._stops = self._stops_obeyed = 0
        self._wake = Event()
        self._sleeps_until = -inf

    # -- what is held

    def hold(self, lease: Lease, *, stall_seconds: float | None = None) -> None:
        """Renew until it is released or lost; nobody has to tell the keeper about that.

        With `stall_seconds` it is given up when the work has not beaten for so long,
        counted from this call. Holding again changes nothing but the stall time.
        """
        if not lease.live:
            return
        if stall_seconds is not None and stall_seconds != lease.stall_seconds:
            lease.stall_seconds = stall_seconds
            lease.beat(self._clock.monotonic())
        with self._lock:
            held = self._agenda.held.get(lease)
            new = held is None
            if held is None:
                held = self._agenda.held[lease] = Held(lease)
            if not held.waiting:
                self._schedule(held, now=-inf)
        if new:
            lease.on_lost(self._gone)

    @property
    def held(self) -> int:
        """How many live leases are held. Counts them one by one."""
        with self._lock:
            return sum(lease.live for lease in self._agenda.held)

    def _schedule(self, held: Held, now: float) -> None:
        """Under the lock: look at it again when something is to be done."""
        wake_at = self._wake_at(held, now)
        if wake_at == held.wake_at:
            return
        self._agenda.put(held, wake_at)
        if wake_at < self._sleeps_until:
            self._sleeps_until = wake_at
            self._wake.set()

    def _wake_at(self, held: Held, now: float) -> float:
        lease = held.lease
        at = over_at(lease)
        due = due_at(held, self._renew_after)
        if due > now or seconds_to_ask(lease, now) > 0:
            at = min(at, due)
        if lease.cap_at is not None and not held.warned:
            at = min(at, lease.cap_at - self._cap_warning_seconds)
        return at

    def _gone(self, lease: Lease) -> None:
        """Whoever noticed the loss, it is reported once."""
        self._events.emit(
            LeaseGone(lease.source.name, lease.message_id, lease.attempt, lease.reason)
        )

    # -- one pass

    def tick(self) -> Tick:
        """One pass: renew what is due, lose what is lost. The thread does this by itself."""
        return self._pass(lambda: False)

    def _pass(self, stopping: Callable[[], bool]) -> Tick:
        current = _Pass(self._clock.monotonic())
        try:
            while True:
                self._judge(current)
                group = current.most_urgent()
                if group is None or stopping():
                    break
                self._fill(current, group)
                self._renew(current, group)
        finally:
            next_at = self._put_back(current.left_over())
        return Tick(current.renewed, current.at_risk, current.lost, next_at)

    def _judge(self, current: _Pass) -> None:
        """Look at everything whose time has come; nothing here calls a source."""
        now = self._clock.monotonic()
        while (held := self._take(now)) is not None:
            lease = held.lease
            if (reason := why_over(lease, now)) is not None:
                current.lost += self._lose(lease, reason)
                continue
            self._warn_near_cap(held, now)
            seconds = seconds_to_ask(lease, now)
            if seconds > 0 and due_at(held, self._renew_after) <= now:
                current.add(held, seconds)
                self._watch(held)
            else:
                with self._lock:
                    self._schedule(held, now)

    def _take(self, until: float) -> Held | None:
        with self._lock:
            return self._agenda.take(until)

    def _watch(self, held: Held) -> None:
        """While it waits for its batch, its deadline stays on the agenda."""
        with self._lock:
            self._agenda.put(held, over_at(held.lease))

    def _lose(self, lease: Lease, reason: str) -> bool:
        try:
            return lease.lose(reason)
        # SystemExit too: it would end the thread, and with it all other leases, unheard.
        except (Exception, SystemExit):
            _log.exception("a callback failed on the loss of %r", lease)
            return True

    def _warn_near_cap(self, held: Held, now: float) -> None:
        lease = held.lease
        if held.warned or lease.cap_at is None:
            return
        left = lease.cap_at - now
        if left <= self._cap_warning_seconds:
            held.warned = True
            self._events.emit(NearCap(lease.source.name, lease.message_id, lease.attempt, left))

    def _fill(self, current: _Pass, group: _Group) -> None:
        """Pull forward what is due soon: a call that goes out anyway shall go out full."""
        now = self._clock.monotonic()
        soon = group.waiting[0].lease.seconds * self._renew_after * _SOON
        passed_over = []
        for _ in range(_LOOKED_AT):
            if len(group.waiting) >= group.source.renew_batch:
                break
            if (held := self._take(now + soon)) is None:
                break
            if self._fits(held, group, current, now, soon):
                group.add(held)
                self._watch(held)
            else:
                passed_over.append(held)
        self._put_back(passed_over)

    def _fits(self, held: Held, group: _Group, current: _Pass, now: float, soon: float) -> bool:
        lease = held.lease
        return (
            lease.source is group.source
            and seconds_to_ask(lease, now) == group.seconds
            and due_at(held, self._renew_after) <= now + soon
            and held.asked_at < current.started_at
            and not held.waiting
        )

    def _renew(self, current: _Pass, group: _Group) -> None:
        batch = group.cut()
        asked_at = self._clock.monotonic()
        asking = [held for held in batch if held.lease.live and asked_at < over_at(held.lease)]

    def _put_back(self, rest: Sequence[Held]) -> float | None:
        raise NotImplementedError


_keepers: "WeakSet[LeaseKeeper]" = WeakSet()


def _begin_all() -> None:
    for keeper in _keepers:
        keeper._begin()


# A forked child has none of its parent's threads, and perhaps a lock that a thread of the
# parent held. Its keepers start anew; the leases stay the parent's.
os.register_at_fork(after_in_child=_begin_all)
