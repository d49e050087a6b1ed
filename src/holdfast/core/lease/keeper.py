"""The keeper: one thread that renews every lease held, whatever its kind.

    hold ──▶ agenda ──▶ judge ─┬─ past its deadline, cap or stall ─▶ LOST, no call
               ▲               ├─ near its cap ─▶ warned, once
               │               └─ due ─▶ batch of one source ─▶ renew
               │                                                  │ one answer each
               └──────── at the next renewal or retry ◀───────────┘

Sources are called one after another, the most urgent lease first. A slow source delays
the renewals of the others, but never silently: everything is judged again after each
call, and what ran out meanwhile is LOST before the next call goes out. Give the clients
of sources timeouts well below the lease.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from threading import Condition, Thread, current_thread
from types import TracebackType
from typing import Self

from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Events, MessageLeaseLost
from holdfast.core.lease.lease import Lease, check_source
from holdfast.core.lease.renewal import RenewalPass
from holdfast.core.lease.renewal_schedule import RenewalSchedule
from holdfast.core.process import after_fork

_log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Tick:
    """What one pass did."""

    renewed: int
    at_risk: int  # asked for, without an answer
    lost: int
    next_at: float | None  # monotonic: when there is something to do again


class LeaseKeeper:
    """Renews what is held until it is released or lost. Safe to share between threads.

    A renewal is asked for when `renew_after` of the lease has passed since the last one.
    `NearCap` is emitted `cap_warning_seconds` before a source will extend no further.
    `start` and `stop` may be called from any thread, the callbacks of leases included.
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
        self._begin()
        # A forked child has none of its parent's threads, but may have a lock that one of
        # them held. So its keepers begin anew: not running, the leases stay the parent's.
        after_fork.run_after_fork(self, LeaseKeeper._begin)

    def _begin(self) -> None:
        """Nothing held, nothing running."""
        self._agenda = RenewalSchedule(self._renew_after, self._cap_warning_seconds)
        self._changed = Condition()
        self._thread: Thread | None = None
        self._ended: Thread | None = None  # perhaps still in its last instructions
        self._wanted = False
        self._stops = 0
        self._stops_obeyed = 0

    # -- holding

    def hold(self, lease: Lease, *, stall_seconds: float | None = None) -> None:
        """Renew until it is released or lost; nobody needs to tell the keeper which.

        With `stall_seconds` it is given up when it was not beaten for so long, counted
        from this call. Holding again changes nothing but the stall time. Raises TypeError,
        and holds nothing, when the lease's source is not a LeaseSource.
        """
        if not lease.live:
            return
        check_source(lease.source)
        if stall_seconds is not None and stall_seconds != lease.stall_seconds:
            lease.stall_seconds = stall_seconds
            lease.beat(self._clock.monotonic())
        if self._agenda.add(lease):
            lease.on_lost(self._report_gone)

    @property
    def held(self) -> int:
        """How many live leases are held, counted one by one."""
        return self._agenda.live()

    def _report_gone(self, lease: Lease) -> None:
        """By whoever noticed first: the keeper, the queue or the worker."""
        self._events.emit(
            MessageLeaseLost(lease.source.name, lease.message_id, lease.attempt, lease.reason)
        )

    # -- one pass

    def tick(self) -> Tick:
        """One pass, here and now: renew what is due, lose what is lost."""
        return self._pass(lambda: False)

    def _pass(self, stopping: Callable[[], bool]) -> Tick:
        renewal = RenewalPass(self._agenda, self._clock, self._events, self._random)
        renewal.run(stopping)
        first_at = self._agenda.first_at()
        return Tick(
            renewed=renewal.renewed,
            at_risk=renewal.at_risk,
            lost=renewal.lost,
            next_at=None if first_at == inf else first_at,
        )

    # -- the thread
    #
    # A stop is obeyed between passes and between calls. It waits until the thread has
    # said so, not until the thread is gone: a start that came meanwhile keeps it, and
    # there never are two.

    @property
    def running(self) -> bool:
        return self._wanted and self._thread is not None

    def start(self) -> None:
        """Renew in the background. Does nothing when that is so already."""
        with self._changed:
            self._wanted = True
            if self._thread is not None:
                return
            if self._ended is not None:
                self._ended.join()
            self._thread = Thread(target=self._run, name="holdfast-keeper", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads to be had: do not seem to run
                self._thread, self._wanted = None, False
                raise

    def stop(self) -> None:
        """Stop renewing. After the return no source is called; what is held stays held.

        Waits for a call that is under way, but not when called by a callback, in the
        keeper's own thread: then the pass ends before its next call.
        """
        with self._changed:
            self._wanted = False
            self._stops += 1
            self._agenda.wake.set()
            stops, thread = self._stops, self._thread
            if thread is current_thread():
                return
            while thread is not None and thread is self._thread and self._stops_obeyed < stops:
                self._changed.wait()
            ended = self._ended
        if ended is not None:
            ended.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while self._goes_on():
                self._pass_safely()
                self._sleep()
        except BaseException:
            self._end()
            raise

    def _pass_safely(self) -> None:
        try:
            self._pass(self._stop_came)
        except Exception:  # a bug here must not cost every lease there is
            _log.exception("the keeper's pass failed")

    def _stop_came(self) -> bool:
        return self._stops > self._stops_obeyed or self._thread is not current_thread()

    def _sleep(self) -> None:
        until = self._agenda.sleep_until()
        seconds = None if until == inf else max(0.0, until - self._clock.monotonic())
        self._clock.wait(self._agenda.wake, seconds)

    def _goes_on(self) -> bool:
        with self._changed:
            self._agenda.awake()
            self._stops_obeyed = self._stops
            self._changed.notify_all()
            if not self._wanted:
                self._end()
            return self._thread is current_thread()

    def _end(self) -> None:
        """Once this is done the thread touches nothing any more."""
        with self._changed:
            if self._thread is current_thread():
                self._thread, self._ended = None, current_thread()
                self._changed.notify_all()
