"""The async runner: one event loop that handles as many messages at once as it has slots.

    poll thread ── claims for all free slots ──▶ event loop ── one task per message
         ▲                                            ▲               │ outcome
         │                                            └─ next ready ──┤
         └────────── a slot is free again ◀── settle threads ◀────────┘

Neither polling nor settling happens on the loop, so a slow queue delays no coroutine. Time
limits are enforced from outside the loop, so a coroutine that blocks the loop can still lose
its lease.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from threading import Event, Thread
from typing import Generic

from holdfast.lease.lease import Lease, LeaseState
from holdfast.process.liveness import LivenessLimits
from holdfast.queue.message import M
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.handler import Handler, bind_handler
from holdfast.worker.outcome import (
    GIVE_BACK,
    Abandoned,
    Outcome,
    Retry,
    retry_after_error,
    retry_logged,
    to_outcome,
)
from holdfast.worker.runner import call_soon
from holdfast.worker.settle import ClaimedMessage, InFlight, is_ack

_MAX_TICK_SECONDS = 0.1
_MAX_SETTLE_THREADS = 8  # hides network latency; a local disk gains nothing from more


@dataclass(eq=False, slots=True)
class _RunningMessage(Generic[M]):
    """One message on the loop. `outcome` is set when the message is cancelled."""

    claimed: ClaimedMessage[M]
    task: "asyncio.Task[None] | None" = None
    outcome: Outcome | None = None
    cancelled_at: float = 0.0


class AsyncRunner(Generic[M]):
    """Runs handlers as coroutines, for `isolation="async"`."""

    exit_timeout_seconds = 1.0

    def __init__(
        self,
        count: int,
        handler: Handler,
        fetcher: Fetcher[M],
        in_flight: InFlight[M],
        limits: LivenessLimits,
    ) -> None:
        self.error: BaseException | None = None
        self._call = bind_handler(handler)
        self._make_context = in_flight.make_context
        self._fetcher = fetcher
        self._in_flight = in_flight
        self._limits = limits
        tick_seconds = limits.compute_tick_seconds(in_flight.queue.lease_seconds)
        self._tick_seconds = min(_MAX_TICK_SECONDS, tick_seconds)
        self._clock = in_flight.clock
        self._count = count
        self._freed = Event()
        self._cancelled = False
        self._running: set[_RunningMessage[M]] = set()
        self._new_acks = 0  # that are due
        self._settle_pool = ThreadPoolExecutor(
            min(count, _MAX_SETTLE_THREADS), "holdfast-settler"
        )
        self._loop_started = Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finished = asyncio.Event()
        self._loop_thread = Thread(target=self._run_loop, name="holdfast-loop", daemon=True)
        self._poll_thread = Thread(target=self._poll, name="holdfast-poller", daemon=True)

    # -- called by the worker

    def start(self) -> None:
        """Start the threads. Raises RuntimeError if one of them cannot be started."""
        # Start one settle thread before a message is claimed. Without any, a coroutine that
        # ended could not be settled, and the keeper would hold its message forever.
        self._settle_pool.submit(int)
        self._loop_thread.start()
        self._loop_started.wait()
        if self.error is not None:
            raise self.error
        self._poll_thread.start()

    def watch(self, now: float) -> float:
        """Cancel work that breaks a limit, and give up work that ignores its cancellation."""
        for running in tuple(self._running):
            started_at, lease = running.claimed.started_at, running.claimed.lease
            if running.outcome is None:
                reason = self._limits.find_missing(now, started_at, lease.last_beat_at)
                if reason is not None:
                    self._cancel(running, retry_logged(reason))
            elif now - running.cancelled_at >= self._limits.kill_grace_seconds:
                lease.lose("it was cancelled and did not end")
        return self._tick_seconds

    def count_unfinished(self) -> int:
        """Return how many messages must be settled, plus one while the poll thread runs."""
        in_flight = self._in_flight.claimed.copy()
        unsettled = sum(claimed.lease.state is not LeaseState.LOST for claimed in in_flight)
        return unsettled + self._poll_thread.is_alive()

    def cancel_running(self) -> None:
        """Cancel all coroutines and give their messages back."""
        self._cancelled = True
        for running in tuple(self._running):
            self._cancel(running, GIVE_BACK)

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the work, give up the rest, and end the threads."""
        until = self._clock.monotonic() + seconds
        while self.count_unfinished() and self._clock.monotonic() < until:
            self._clock.sleep(0.01)
        for claimed in self._in_flight.claimed.copy():
            claimed.lease.lose("the worker stopped before the work was done")
        call_soon(self._loop, self._finished.set)
        if self._loop_thread.is_alive():
            self._loop_thread.join(max(0.1, until - self._clock.monotonic()))
        self._settle_pool.shutdown(wait=False)

    # -- in the poll thread

    def _poll(self) -> None:
        try:
            while (free := self._wait_for_free_slots()) and self._fetcher.fill(free):
                call_soon(self._loop, self._start_ready)
        except BaseException as error:
            self.error = error
            self._fetcher.close()

    def _wait_for_free_slots(self) -> int:
        """Return how many slots are free as soon as one is, or 0 once the fetcher is closed."""
        while not self._fetcher.closed:
            self._freed.clear()
            if (free := self._count - len(self._in_flight.claimed)) > 0:
                return free
            self._clock.wait(self._freed, 0.1)
        return 0

    # -- in the thread of the loop

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._run_until_finished())
        except BaseException as error:
            self.error = error
            self._fetcher.close()
        finally:
            self._loop_started.set()

    async def _run_until_finished(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_started.set()
        await self._finished.wait()

    def _start_ready(self) -> None:
        """Start as many of the ready messages as slots are free."""
        while len(self._running) < self._count:
            if (claimed := self._fetcher.take()) is None:
                break
            running = _RunningMessage(claimed)
            self._running.add(running)
            running.task = asyncio.create_task(self._attempt(running, claimed))
            claimed.lease.on_lost(partial(self._cancel_lost, running))

    def _cancel_lost(self, running: _RunningMessage[M], lease: Lease) -> None:
        self._cancel(running, Abandoned(lease.reason))

    async def _attempt(self, running: _RunningMessage[M], claimed: ClaimedMessage[M]) -> None:
        tracing = self._in_flight.queue.tracing
        if tracing is None:
            outcome = await self._call_handler(running)
        else:
            with tracing.processing(claimed.message) as note_outcome:
                outcome = await self._call_handler(running)
                note_outcome(outcome)
        claimed.seconds = self._clock.monotonic() - claimed.started_at
        self._fetcher.note_finished(claimed.seconds)
        self._running.discard(running)
        if not is_ack(outcome):
            self._submit(partial(self._in_flight.settle, claimed, outcome))
        elif self._in_flight.add_ack(claimed):
            self._new_acks += 1
            if self._new_acks == 1:  # the call comes after the other tasks that are due
                asyncio.get_running_loop().call_soon(self._flush_acks)
        self._start_ready()

    def _flush_acks(self) -> None:
        """Send the acks of tasks that ended at about the same time, with few calls."""
        calls = ceil(self._new_acks / self._in_flight.queue.poll_batch)
        self._new_acks = 0
        for _ in range(calls):
            self._submit(self._in_flight.flush_acks)

    async def _call_handler(self, running: _RunningMessage[M]) -> Outcome:
        message, lease = running.claimed.message, running.claimed.lease
        try:
            return to_outcome(await self._call(message, self._make_context(message, lease)))
        # An exception ends only this attempt, even SystemExit.
        except BaseException as error:
            return _map_error(error, running.outcome)

    def _cancel(self, running: _RunningMessage[M], outcome: Outcome) -> None:
        """Cancel the coroutine from any thread. Only the first call has an effect."""
        if running.outcome is None and running.task is not None:
            running.outcome, running.cancelled_at = outcome, self._clock.monotonic()
            call_soon(self._loop, running.task.cancel)

    # -- in the settle threads

    def _submit(self, settle: Callable[[], object]) -> None:
        # RuntimeError means that the coroutine ended after the worker did, or that no further
        # thread is available. In the second case the call waits for an existing thread.
        with suppress(RuntimeError):
            self._settle_pool.submit(self._settle, settle)

    def _settle(self, settle: Callable[[], object]) -> None:
        try:
            settle()
        finally:
            self._freed.set()


def _map_error(error: BaseException, cancel_outcome: Outcome | None) -> Outcome:
    match cancel_outcome:
        case None:
            return retry_after_error(error)
        case Retry(_, reason):
            # The traceback shows where the coroutine was when it was cancelled.
            return retry_logged(reason, retry_after_error(error).detail)
        case _:
            return cancel_outcome
