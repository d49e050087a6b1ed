"""The lease: the right to one piece of work until a deadline.

    claim ──▶ HELD ◀──────────── renewed in time ─┐
               │  └─ transient error ─▶ AT_RISK ──┘
               │                           │
               │ refused, deadline passed, │ stalled, capped
               ├───────────────────────────┴────────▶ LOST      (final)
               └─ acked, nacked, dead-lettered ─────▶ RELEASED  (final)

Trust counts from *before* a call: a claim or renewal that was requested at t is good until
t + seconds, whenever the response arrives. A response that arrives after the old deadline
proves nothing, because another worker may have taken over in between. So the lease is lost.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from threading import Event, Lock
from typing import Any, Protocol

from holdfast.errors import LeaseLost

_MAX_PROGRESS = 1e12
_log = logging.getLogger("holdfast")


class LeaseState(Enum):
    """The state of a lease. LOST and RELEASED are final."""

    HELD = "held"
    AT_RISK = "at risk"
    LOST = "lost"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Renewed:
    """The backend extended the lease."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The backend reports that this process no longer holds the lease. This is final."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """It is unknown whether the lease was extended: the call was throttled or timed out.

    The keeper tries again."""

    reason: str


Renewal = Renewed | Refused | Unanswered
RENEWED = Renewed()


class LeaseSource(Protocol):
    """A queue or a lock table: anything that can extend the leases it granted."""

    name: str
    """The name in events and logs."""

    renew_batch: int
    """The maximum number of leases in one `renew` call."""

    def renew(self, leases: "Sequence[Lease]", seconds: float) -> Sequence[Renewal]:
        """Request `seconds` from now for each lease. Return one result per lease, in order.

        This moves no deadline, because the caller does so with `Lease.apply_renewal`. An
        exception counts as Unanswered for the whole batch, so raise only if the call
        failed for every lease in it.
        """


# Reading a member from the Enum is a call, and these are read many times per message.
HELD, AT_RISK, LOST, RELEASED = LeaseState
FINAL_STATES = (LOST, RELEASED)

# All leases share one lock. A transition is a few instructions long, while a lock per lease
# would cost memory for each of ten thousand leases. The hooks keep a forked child from
# inheriting the lock while it is locked.
_transition = Lock()
os.register_at_fork(before=_transition.acquire, after_in_parent=_transition.release)
os.register_at_fork(after_in_child=_transition.release)


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class Lease:
    """The right to one piece of work. A source creates it and the keeper renews it."""

    source: LeaseSource
    handle: Any  # the adapter's receipt, which is never printed or serialised
    message_id: str
    attempt: int
    fence: int
    claimed_at: float  # monotonic, read before the claim
    seconds: float
    cap_at: float | None = None  # monotonic; the source does not extend the lease beyond this
    deadline: float = field(init=False)
    last_beat_at: float = field(init=False)  # monotonic
    has_beaten: bool = field(default=False, init=False)  # False: last_beat_at is the start
    progress: float | None = field(default=None, init=False)  # as the work reported it
    stall_seconds: float | None = field(default=None, init=False)
    state: LeaseState = field(default=HELD, init=False)
    reason: str = field(default="", init=False)
    _lost: Event | None = field(default=None, init=False)
    _on_lost: "tuple[Callable[[Lease], None], ...]" = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.deadline = self.claimed_at + self.seconds
        self.last_beat_at = self.claimed_at

    def __repr__(self) -> str:
        return f"<Lease {self.message_id!r} attempt {self.attempt} {self.state.value}>"

    @property
    def live(self) -> bool:
        """Whether the lease is neither lost nor released."""
        return self.state is HELD or self.state is AT_RISK

    @property
    def is_watched(self) -> bool:
        """Whether a callback waits for its loss. A keeper watches every lease that it holds."""
        return bool(self._on_lost)

    @property
    def lost(self) -> Event:
        """An event that is set when the lease is lost.

        It is created on first use, because most leases are never watched."""
        with _transition:
            if self._lost is None:
                self._lost = Event()
                if self.state is LOST:
                    self._lost.set()
            return self._lost

    def on_lost(self, callback: "Callable[[Lease], None]") -> None:
        """Call `callback` once when the lease is lost, or now if it is lost already."""
        with _transition:
            if self.state is not LOST:
                self._on_lost = (*self._on_lost, callback)
                return
        callback(self)

    def apply_renewal(
        self, renewal: Renewal, *, asked_at: float, now: float, seconds: float
    ) -> LeaseState:
        """Apply the result of a renewal of `seconds` that was requested at `asked_at`.

        Return the new state. A result that arrives after the deadline loses the lease.
        """
        match renewal:
            case Refused(reason):
                self.lose(reason)
            case _ if now >= self.deadline:
                self.lose("no renewal was confirmed before the deadline")
            case Renewed():
                with _transition:
                    if self.live:
                        self.deadline = asked_at + seconds
                        self.state, self.reason = HELD, ""
            case Unanswered(reason):
                with _transition:
                    if self.live:
                        self.state = AT_RISK
                        self.reason = reason
        return self.state

    def check(self, now: float) -> None:
        """Raise LeaseLost if the lease is lost. It is lost now if its deadline has passed."""
        if now >= self.deadline:
            self.lose("its deadline passed")
        if self.state is LOST:
            raise LeaseLost(f"lease of {self.message_id!r} is lost: {self.reason}")

    def beat(self, now: float, progress: Any = None) -> None:
        """Record that the work made progress at `now`, and how far it is if it says so.

        Queues store both with the next renewal, which a value of another type or a number
        without end must not break. So these are ignored.
        """
        self.last_beat_at = now
        self.has_beaten = True
        if isinstance(progress, int | float) and abs(progress) < _MAX_PROGRESS:
            self.progress = float(progress)

    def lose(self, reason: str) -> bool:
        """Mark the lease as lost. Return whether this call did it.

        The callbacks run once, in the thread of the call that did.
        """
        with _transition:
            if not self.live:
                return False
            self.state, self.reason = LOST, reason
            event, callbacks, self._on_lost = self._lost, self._on_lost, ()
        if event is not None:
            event.set()
        for callback in callbacks:
            try:
                callback(self)
            # The others must run. SystemExit would end the keeper's thread without a trace.
            except (Exception, SystemExit):
                _log.exception("a callback failed on the loss of %r", self)
        return True

    def release(self, how: str = "") -> bool:
        """Mark the lease as settled and record how. Return whether this call did it."""
        with _transition:
            if self.state is LOST or self.state is RELEASED:
                return False
            self.state, self.reason, self._on_lost = RELEASED, how, ()
            return True
