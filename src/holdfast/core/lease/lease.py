"""The lease: the right to one piece of work until a deadline.

    claim ──▶ HELD ◀──────────── renewed in time ─┐
               │  └─ transient error ─▶ AT_RISK ──┘
               │                           │
               │ refused, deadline passed, │ stalled, capped
               ├───────────────────────────┴────────▶ LOST      (final)
               └─ acked, nacked, dead-lettered ─────▶ RELEASED  (final)

Trust counts from *before* a call: a claim or renewal that was asked for at t is good
until t + seconds, whenever the answer came. An answer that comes after the old deadline
proves nothing (somebody may have judged in between), so it loses the lease.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from threading import Event, Lock
from typing import Any, Protocol

from holdfast.core.errors import LeaseLost

_log = logging.getLogger("holdfast")


class LeaseState(Enum):
    HELD = "held"
    AT_RISK = "at risk"
    LOST = "lost"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Renewed:
    """The backend granted the extension."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The backend says the lease is not ours any more: final."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Throttled, unreachable, timed out: nobody knows; worth another try."""

    reason: str


Renewal = Renewed | Refused | Unanswered
RENEWED = Renewed()


class LeaseSource(Protocol):
    """Anything that can prolong its leases: a queue, a lock table."""

    name: str
    """For people and events."""

    renew_batch: int
    """How many leases one `renew` call may carry."""

    def renew(self, leases: "Sequence[Lease]", seconds: float) -> Sequence[Renewal]:
        """Ask for `seconds` from now for each lease; one answer per lease, in order.

        Moves no deadline (the caller does, by `Lease.answered`) and raises only when
        no lease of the batch could be asked, which counts as unanswered for all.
        """


def check_source(source: LeaseSource) -> None:
    """Raise TypeError when the keeper could not use the source, and name what is wrong."""
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


# Looking up a member of an Enum is a call; these are read many times per message.
HELD, AT_RISK, LOST, RELEASED = LeaseState

# One lock for all transitions: they are a few instructions long, and a lock per lease
# would cost memory ten thousand times over. A fork must not inherit it locked.
_transition = Lock()
os.register_at_fork(before=_transition.acquire, after_in_parent=_transition.release)
os.register_at_fork(after_in_child=_transition.release)


class Lease:
    """The right to one piece of work. Made by a source, renewed by the keeper."""

    __slots__ = (
        "__weakref__",
        "_lost",
        "_on_lost",
        "attempt",
        "cap_at",
        "claimed_at",
        "deadline",
        "fence",
        "handle",
        "message_id",
        "moved_at",
        "reason",
        "seconds",
        "source",
        "stall_seconds",
        "state",
    )

    def __init__(
        self,
        source: LeaseSource,
        handle: Any,
        *,
        message_id: str,
        attempt: int,
        fence: int,
        claimed_at: float,
        seconds: float,
        cap_at: float | None = None,
    ) -> None:
        self.source = source
        self.handle = handle  # the adapter's own receipt: never printed, never serialised
        self.message_id = message_id
        self.attempt = attempt
        self.fence = fence
        self.claimed_at = claimed_at  # monotonic, from before the claim
        self.seconds = seconds
        self.deadline = claimed_at + seconds
        self.cap_at = cap_at  # monotonic; the source extends no further than this
        self.stall_seconds: float | None = None
        self.moved_at = claimed_at  # monotonic; the last beat of the work
        self.state = HELD
        self.reason = ""
        self._lost: Event | None = None
        self._on_lost: tuple[Callable[[Lease], None], ...] = ()

    def __repr__(self) -> str:
        return f"<Lease {self.message_id!r} attempt {self.attempt} {self.state.value}>"

    @property
    def live(self) -> bool:
        return self.state is HELD or self.state is AT_RISK

    @property
    def lost(self) -> Event:
        """Set when the lease is lost. Made on first use: most leases are never watched."""
        with _transition:
            if self._lost is None:
                self._lost = Event()
                if self.state is LOST:
                    self._lost.set()
            return self._lost

    def on_lost(self, callback: "Callable[[Lease], None]") -> None:
        """Call back once when lost; at once when it is lost already."""
        with _transition:
            if self.state is not LOST:
                self._on_lost = (*self._on_lost, callback)
                return
        callback(self)

    def answered(
        self, renewal: Renewal, *, asked_at: float, now: float, seconds: float
    ) -> LeaseState:
        """Take in the backend's answer to a renewal of `seconds` asked for at `asked_at`."""
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
        """Raise LeaseLost unless the lease is still good at `now`."""
        if now >= self.deadline:
            self.lose("its deadline passed")
        if self.state is LOST:
            raise LeaseLost(f"lease of {self.message_id!r} is lost: {self.reason}")

    def beat(self, now: float) -> None:
        """The work moved."""
        self.moved_at = now

    def lose(self, reason: str) -> bool:
        """Mark as lost. True for the call that did it; callbacks run once, in its thread."""
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
            except Exception:  # one that fails must not keep the others from knowing
                _log.exception("a callback failed on the loss of %r", self)
        return True

    def release(self, how: str = "") -> bool:
        """Mark as settled, and how. True for the call that did it."""
        with _transition:
            if self.state is LOST or self.state is RELEASED:
                return False
            self.state, self.reason, self._on_lost = RELEASED, how, ()
            return True
