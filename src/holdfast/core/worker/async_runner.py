"""A crew of coroutines: one event loop, as many messages at once as there are slots.

    poller thread ── claims for all free slots ──▶ event loop ── one task per message
         ▲                                                              │ outcome
         └────────── a slot is free again ◀── settling threads ◀────────┘

Neither polling nor settling happens on the loop, so a slow queue delays no coroutine.
Time limits are kept from outside the loop: a coroutine that blocks it can still lose its
lease.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock, Thread
from typing import Generic

from holdfast.core.clock import Clock
from holdfast.core.lease.lease import Lease, LeaseState
from holdfast.core.queue.message import M, lease_of
from holdfast.core.worker.context import LeaseContext
from holdfast.core.worker.executor import caller, soon
from holdfast.core.worker.fetcher import Fetcher
from holdfast.core.worker.handler import Handler
from holdfast.core.worker.in_flight import InFlight
from holdfast.core.worker.outcome import Abandoned, GiveBack, Outcome, Retry
from holdfast.core.worker.outcome_mapping import outcome_of, retry_after_error, retry_logged
from holdfast.core.worker.watchdog import SignsOfLife, WatchdogLimits

_SETTLERS = 8  # enough to hide a network's latency; a local disk gains nothing from more


@dataclass(eq=False, slots=True)
class _Run:
    """One message on the loop."""

    lease: Lease
    started_at: float
    task: "asyncio.Task[None] | None" = None
    ending: Outcome | None = None  # why it was cancelled, once it was
    ending_at: float = 0.0


class AsyncRunner(Generic[M]):
    """The crew of `isolation="async"`."""

    exit_timeout_seconds = 1.0

    def __init__(
        self,
        count: int,
        handler: Handler,
        make_context: Callable[[M, Lease], LeaseContext],
        feed: Fetcher[M],
        ledger: InFlight[M],
        limits: WatchdogLimits,
        clock: Clock,
    ) -> None:
        self.error: BaseException | None = None
        self._call = caller(handler)
        self._make_context = make_context
        self._feed = feed
        self._ledger = ledger
        self._limits = limits
        self._clock = clock
        self._free = count
        self._lock = Lock()
        self._freed = Event()
        self._cut_off = False
        self._runs: set[_Run] = set()
        self._settlers = ThreadPoolExecutor(min(count, _SETTLERS), "holdfast-settler")
        self._up = Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._looper = Thread(target=self._run_loop, name="holdfast-loop", daemon=True)
        self._poller = Thread(target=self._poll, name="holdfast-poller", daemon=True)

    # -- for the worker

    def start(self) -> None:
        # One settler at least, before anything is claimed: without any, no coroutine that
        # ended could be settled, and the keeper would hold its message without end.
        self._settlers.submit(int)
        self._looper.start()
        self._up.wait()
        if self.error is not None:
            raise self.error
        self._poller.start()

    def watch(self, now: float) -> None:
        for run in tuple(self._runs):
            if run.ending is None:
                signs = SignsOfLife(run.started_at, now, run.lease.moved_at)
                if (reason := signs.missing(self._limits, now)) is not None:
                    self._end(run, retry_logged(reason))
            elif now - run.ending_at >= self._limits.kill_grace_seconds:
                run.lease.lose("it was cancelled and did not end")

    def unfinished(self) -> int:
        going_on = sum(lease.state is not LeaseState.LOST for lease in self._ledger.open())
        return going_on + self._poller.is_alive()

    def cancel_running(self) -> None:
        self._cut_off = True
        for run in tuple(self._runs):
            self._end(run, GiveBack())

    def join(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while self.unfinished() and self._clock.monotonic() < until:
            self._clock.sleep(0.01)
        for lease in self._ledger.open():
            lease.lose("the worker stopped before the work was done")
        soon(self._loop, self._over.set)
        if self._looper.is_alive():
            self._looper.join(max(0.1, until - self._clock.monotonic()))
        self._settlers.shutdown(wait=False)

    # -- the poller

    def _poll(self) -> None:
        try:
            while (free := self._wait_for_free()) and (messages := self._feed.poll(free)):
                with self._lock:
                    self._free -= len(messages)
                soon(self._loop, self._begin, messages)
        except BaseException as error:
            self.error = error
            self._feed.close()

    def _wait_for_free(self) -> int:
        """How many slots are free, as soon as one is; 0 when it is over."""
        while not self._feed.closed:
            self._freed.clear()
            if self._free:
                return self._free
            self._clock.wait(self._freed, 0.1)
        return 0

    # -- on the loop

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._be_there())
        except BaseException as error:
            self.error = error
            self._feed.close()
        finally:
            self._up.set()

    async def _be_there(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._up.set()
        await self._over.wait()

    def _begin(self, messages: list[M]) -> None:
        for message in messages:
            run = _Run(lease_of(message), self._clock.monotonic())
            if self._cut_off:
                self._settle_soon(run, message, GiveBack())
                continue
            self._runs.add(run)
            run.task = asyncio.create_task(self._attempt(run, message))
            run.lease.on_lost(partial(self._lost, run))

    def _lost(self, run: _Run, lease: Lease) -> None:
        self._end(run, Abandoned(lease.reason))

    async def _attempt(self, run: _Run, message: M) -> None:
        try:
            result = await self._call(message, self._make_context(message, run.lease))
            outcome = outcome_of(result)
        # Whatever it raises ends this attempt only, SystemExit too.
        except BaseException as error:
            outcome = _ended_by(error, run.ending)
        self._settle_soon(run, message, outcome)

    def _end(self, run: _Run, outcome: Outcome) -> None:
        """Cancel it, from any thread. The first reason counts."""
        if run.ending is None and run.task is not None:
            run.ending, run.ending_at = outcome, self._clock.monotonic()
            soon(self._loop, run.task.cancel)

    # -- the settlers

    def _settle_soon(self, run: _Run, message: M, outcome: Outcome) -> None:
        # RuntimeError: it ended after the worker did; or no further thread can be had, then
        # it waits for one of those there are.
        with suppress(RuntimeError):
            self._settlers.submit(self._settle, run, message, outcome)

    def _settle(self, run: _Run, message: M, outcome: Outcome) -> None:
        try:
            seconds = self._clock.monotonic() - run.started_at
            self._ledger.settle(message, outcome, seconds)
        finally:
            self._runs.discard(run)
            with self._lock:
                self._free += 1
            self._freed.set()


def _ended_by(error: BaseException, ending: Outcome | None) -> Outcome:
    match ending:
        case None:
            return retry_after_error(error)
        case Retry(_, reason):
            return retry_logged(
                reason, retry_after_error(error).detail
            )  # where it was, when cancelled
        case _:
            return ending
