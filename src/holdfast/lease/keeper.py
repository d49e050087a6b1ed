"""The keeper: one thread that renews every lease held in this process.

    hold ──▶ schedule ──▶ check ─┬─ past its deadline, cap or stall ─▶ LOST, no call
                ▲                ├─ near its cap ─▶ NearCap, once
                │                └─ due ─▶ batch of one source ─▶ renew
                │                                                   │ one result each
                └───────── at the next renewal or retry ◀───────────┘

Sources are called one after another, the most urgent lease first. A slow source delays the
renewals of the others, but never silently, because every lease is checked again after each
call. A lease that ran out meanwhile is LOST before the next call is made. Give the clients
of sources timeouts well below the lease.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Self

from holdfast.events import Events, MessageLeaseLost
from holdfast.lease import after_fork
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.lease.lease import Lease
from holdfast.lease.renewal import RenewalPass
from holdfast.lease.renewal_schedule import RenewalSchedule, check_source


@dataclass(frozen=True, slots=True)
class Tick:
    """The result of one pass."""

    renewed: int
    at_risk: int  # requested, but without a response
    lost: int
    next_at: float  # monotonic; infinity when nothing is held


class LeaseKeeper:
    """Renews the leases it holds until they are released or lost. Threads may share it.

    A renewal is requested when the fraction `renew_after` of the lease has passed since the
    last one. `NearCap` is emitted `cap_warning_seconds` before the source stops extending
    the lease. `start` and `stop` may be called from any thread, also from callbacks of
    leases.
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
        if not cap_warning_seconds >= 0:
            raise ValueError(
                f"cap_warning_seconds must be 0 or more, not {cap_warning_seconds}"
            )
        self._clock = clock
        self._events = events or Events()
        self._renew_after = renew_after
        self._cap_warning_seconds = cap_warning_seconds
        self._random = Random()
        self._loop = BackgroundLoop("holdfast-keeper", self._run_background_pass, clock)
        self._reset()
        # In a forked child no keeper runs, and the leases stay with the parent.
        after_fork.run_after_fork(self, LeaseKeeper._reset)

    def _reset(self) -> None:
        """Hold no lease."""
        self._schedule = RenewalSchedule(
            self._renew_after, self._cap_warning_seconds, self._loop.wake, self._report_loss
        )
        self.hold_all = self._schedule.add_all
        """Renew leases as `hold` does, all of them or, if it raises TypeError, none."""

    # -- holding

    def hold(self, lease: Lease, *, stall_seconds: float | None = None) -> None:
        """Renew the lease until it is released or lost, which the keeper notices itself.

        With `stall_seconds`, the lease is given up when it was not beaten for that long,
        counted from this call. A second call changes only the stall time. Raises TypeError,
        and holds nothing, if the lease's source is not a LeaseSource.
        """
        check_source(lease.source)
        if stall_seconds is not None and stall_seconds != lease.stall_seconds:
            lease.stall_seconds = stall_seconds
            lease.last_beat_at = self._clock.monotonic()
        self.hold_all([lease])

    @property
    def held(self) -> int:
        """The number of live leases held. Each access counts them all."""
        return self._schedule.count_live()

    def _report_loss(self, lease: Lease) -> None:
        """Emit the loss, which the keeper, the queue or the worker may have noticed first."""
        self._events.emit(
            MessageLeaseLost(lease.source.name, lease.message_id, lease.attempt, lease.reason)
        )

    # -- one pass

    def tick(self, stopping: Callable[[], bool] = lambda: False) -> Tick:
        """Run one pass in this thread: renew what is due and lose what is over.

        The pass ends before its next call if `stopping()` is true.
        """
        renewal = RenewalPass(self._schedule, self._clock, self._events, self._random)
        renewal.run(stopping)
        next_at = self._schedule.await_next()
        return Tick(renewal.renewed, renewal.at_risk, renewal.lost, next_at)

    def _run_background_pass(self) -> float:
        return self.tick(self._loop.is_stop_pending).next_at

    # -- in the background

    @property
    def running(self) -> bool:
        """Whether the keeper renews in the background."""
        return self._loop.running

    def start(self) -> None:
        """Start renewing in the background. Does nothing if the keeper runs already."""
        self._loop.start()

    def stop(self) -> None:
        """Stop renewing. After the return no source is called. All leases stay held.

        Waits for a call in progress. If a callback calls this in the keeper's own thread, it
        does not wait, and the pass ends before its next call.
        """
        self._loop.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
