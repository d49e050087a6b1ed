"""One invocation: a batch from the extension of all its records to the answer.

Handlers run in threads of their own, so that one which takes too long cannot keep the
answer from going out. Whatever may wait for SQS waits in a thread, too; this one's only
duty is to be back in time.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from math import inf
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Generic

from holdfast.core.clock import Clock
from holdfast.core.errors import LeaseLost
from holdfast.core.events import Claimed, Completed
from holdfast.core.lease.keeper import LeaseKeeper
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.message import (M, get_lease)
from holdfast.core.worker.context import LeaseContext
from holdfast.core.worker.executor import DirectExecutor
from holdfast.core.worker.handler import Handler
from holdfast.core.worker.outcome import Done, GiveBack, Outcome
from holdfast.core.worker.settle import SettleResult, settle
from holdfast.lambdas.deadlines import InvocationDeadlines
from holdfast.lambdas.event import SqsRecord
from holdfast.lambdas.fifo_groups import BatchEntry, FifoGroups

if TYPE_CHECKING:
    from holdfast.bootstrap import SQSQueue

_log = logging.getLogger("holdfast")

_TICK_SECONDS = 0.1  # between two looks at handlers that may take too long

_SETTLED = frozenset({SettleResult.COMPLETED, SettleResult.DEAD_LETTERED})
"""Need not come again."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """How every batch of one function is handled."""

    handler: Handler
    concurrency: int
    reserve_seconds: float
    timeout_seconds: float | None
    clock: Clock


class Invocation(Generic[M]):
    """Make it, `run` it once."""

    def __init__(
        self,
        queue: "SQSQueue[M]",
        batch: Sequence[SqsRecord],
        options: BatchOptions,
        times: InvocationDeadlines,
    ) -> None:
        self._queue, self._batch = queue, batch
        self._terms, self._times, self._clock = options, times, options.clock
        self._keeper = LeaseKeeper(options.clock, queue.events)
        self._lanes: FifoGroups[M] = FifoGroups(())
        self._open: dict[BatchEntry[M], float | None] = {}  # when it was started, if it was
        self._done: list[Lease] = []
        self._results: dict[str, SettleResult] = {}
        self._writing = Lock()
        self._stopping, self._give_up, self._over = Event(), Event(), Event()
        self._threads: list[Thread] = []

    def run(self) -> set[str]:
        """The ids of what need not come again. Everything else is not surely done."""
        try:
            behind = self._take_over()
            if self._open:
                self._keeper.start()
            if behind:
                self._in_thread("give-back", lambda: self._give_back(behind))
            for number in range(min(self._terms.concurrency, len(self._open))):
                self._in_thread(f"slot-{number + 1}", self._work)
            self._wait()
        finally:
            self._end()
        with self._writing:
            return {id for id, settled in self._results.items() if settled in _SETTLED}

    # -- the beginning

    def _take_over(self) -> list[BatchEntry[M]]:
        """Lease what is ours, line it up; those behind one that is not ours are returned."""
        taken = self._queue.adopt_deliveries(
            [delivery.raw for delivery in self._batch], until=self._times.cut_at
        )
        lined_up: list[BatchEntry[M]] = []
        behind: list[BatchEntry[M]] = []
        broken: set[str] = set()
        for delivery, message in zip(self._batch, taken, strict=True):
            lane = f"group {delivery.group}" if self._queue.fifo else delivery.id
            if isinstance(message, SettleResult):
                self._results[delivery.id] = message
                if message not in _SETTLED:
                    broken.add(lane)
                continue
            entry = BatchEntry(delivery.id, lane, message)
            self._hold(entry)
            (behind if lane in broken else lined_up).append(entry)
        self._lanes = FifoGroups(lined_up)
        return behind

    def _hold(self, entry: BatchEntry[M]) -> None:
        lease = get_lease(entry.message)
        self._open[entry] = None
        self._keeper.hold(lease)
        self._queue.events.emit(Claimed(self._queue.name, lease.message_id, lease.attempt))

    # -- waiting: the thread that Lambda called

    def _wait(self) -> None:
        self._wait_until(self._times.start_until)
        rest = self._lanes.close()
        if rest:
            self._in_thread("give-back", lambda: self._give_back(rest))
        self._wait_until(self._times.stop_at)
        self._stopping.set()
        self._wait_until(self._times.cut_at)

    def _wait_until(self, at: float) -> None:
        """Or until all is settled."""
        while not self._all_settled() and (left := at - self._clock.monotonic()) > 0:
            self._give_up_overdue()
            tick = left if self._terms.timeout_seconds is None else min(left, _TICK_SECONDS)
            self._clock.wait(self._over, None if tick == inf else tick)

    def _all_settled(self) -> bool:
        with self._writing:
            return not self._open

    def _give_up_overdue(self) -> None:
        timeout, now = self._terms.timeout_seconds, self._clock.monotonic()
        for entry, started in self._unsettled():
            if timeout is not None and started is not None and now - started >= timeout:
                get_lease(entry.message).lose(f"timed out after {timeout:g} s")

    def _unsettled(self) -> list[tuple[BatchEntry[M], float | None]]:
        with self._writing:
            return list(self._open.items())

    # -- the end

    def _end(self) -> None:
        """Nothing renews, settles or waits for us after this, but for a handler that runs
        on: no thread can be killed. Its lease is lost, so it can do no more harm here.
        """
        self._lanes.close()
        self._stopping.set()
        self._give_up.set()
        for entry, _ in self._unsettled():
            get_lease(entry.message).lose("the invocation ended before the work was done")
        try:
            self._in_thread("farewell", self._let_go)
        except RuntimeError:  # no more threads to be had
            self._let_go()
        for thread in self._threads:
            thread.join(self._grace_seconds())
        if survivors := [thread.name for thread in self._threads if thread.is_alive()]:
            _log.warning(
                "batch_overrun queue=%s running=%d threads=%s: a thread cannot be killed; its "
                "message comes back when its lease has run out",
                self._queue.name,
                len(survivors),
                ",".join(survivors),
            )

    def _let_go(self) -> None:
        """Stop renewing; may wait for a call. What is done is Lambda's from here on."""
        self._keeper.stop()
        for lease in self._done:
            lease.release("left to the event source")

    def _grace_seconds(self) -> float:
        longest = self._terms.reserve_seconds / 4
        return max(0.01, min(longest, self._times.return_by - self._clock.monotonic()))

    def _in_thread(self, name: str, work: Callable[[], None]) -> None:
        # Daemons: a handler that never returns must not keep the runtime from ending.
        run = copy_context().run  # what the caller's tracing and logging know
        thread = Thread(target=run, args=(work,), name=f"holdfast-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    # -- working: the threads

    def _work(self) -> None:
        executor = DirectExecutor(self._terms.handler, self._context)
        try:
            while (entry := self._lanes.take()) is not None:
                self._handle(executor, entry)
        finally:
            executor.close()

    def _context(self, message: M, lease: Lease) -> LeaseContext:
        return LeaseContext(self._queue, message, lease, self._stopping, self._clock)

    def _handle(self, executor: DirectExecutor[M], entry: BatchEntry[M]) -> None:
        started = self._clock.monotonic()
        with self._writing:
            self._open[entry] = started
        settled = SettleResult.ABANDONED
        try:
            if started >= self._times.start_until:  # nobody has closed the lanes yet
                settled = self._settle(entry, GiveBack(), 0.0)
            elif self._is_ours(entry):
                outcome = executor.execute(entry.message, get_lease(entry.message))
                settled = self._settle(entry, outcome, self._clock.monotonic() - started)
        finally:
            self._note(entry, settled)
        if settled in _SETTLED:
            self._lanes.finished(entry)
        else:
            self._give_back(self._lanes.failed(entry))

    def _is_ours(self, entry: BatchEntry[M]) -> bool:
        """It may have been lost while it waited for its turn."""
        try:
            get_lease(entry.message).check(self._clock.monotonic())
        except LeaseLost:
            return False
        return True

    def _settle(self, entry: BatchEntry[M], outcome: Outcome, seconds: float) -> SettleResult:
        if isinstance(outcome, Done):
            return self._complete(entry, seconds)
        return settle(
            self._queue,
            entry.message,
            outcome,
            self._queue.events,
            seconds=seconds,
            give_up=self._give_up,
        )

    def _complete(self, entry: BatchEntry[M], seconds: float) -> SettleResult:
        """Not released: Lambda deletes it when all are through, and until then it must not
        come back. The keeper renews it until it is stopped.
        """
        if not self._is_ours(entry):
            return SettleResult.ABANDONED
        lease = get_lease(entry.message)
        done = Completed(self._queue.name, lease.message_id, lease.attempt, seconds)
        self._queue.events.emit(done)
        self._done.append(lease)
        return SettleResult.COMPLETED

    def _give_back(self, entries: Iterable[BatchEntry[M]]) -> None:
        for entry in entries:
            self._note(entry, self._settle(entry, GiveBack(), 0.0))

    def _note(self, entry: BatchEntry[M], settled: SettleResult) -> None:
        with self._writing:
            self._results[entry.id] = settled
            del self._open[entry]
            if not self._open:
                self._over.set()
