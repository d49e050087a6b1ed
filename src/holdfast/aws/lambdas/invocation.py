"""One invocation: a batch from the extension of all its records to the response.

Handlers run in threads of their own, so that a slow one cannot delay the response. Calls to
SQS that may wait run in threads, too. The calling thread only has to return in time. The
deadlines are planned at the start:

    entry ─── records start ─── │ ─── ctx.stopping ─── │ ─── cut off ─── │ return ─── killed
                           start_until              stop_at           cut_at  return_by   (end)
                           ◀ timeout ▶ ◀──────────────── reserve ─────────────────────▶

In a FIFO batch each group is a lane: one message of it runs at a time, and none is started
after a message that failed. In other batches each message has a lane of its own.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from math import inf
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.errors import LeaseLost
from holdfast.events import Claimed, Completed, OnError, add_error_callback
from holdfast.lease.clock import Clock
from holdfast.lease.keeper import LeaseKeeper
from holdfast.lease.lease import Lease
from holdfast.queue.message import M, get_lease
from holdfast.worker.handler import Handler
from holdfast.worker.outcome import Done, GiveBack, Outcome
from holdfast.worker.runner import Context, DirectExecutor, execute_attempt
from holdfast.worker.settle import SettleResult, settle

if TYPE_CHECKING:
    from holdfast.queues.opening import SQSQueue

T = TypeVar("T")

_log = logging.getLogger("holdfast")

_TICK_SECONDS = 0.1  # between two checks for handlers that take too long

_SETTLED = frozenset({SettleResult.COMPLETED, SettleResult.DEAD_LETTERED})
"""The results after which a message need not be delivered again."""


@dataclass(frozen=True, slots=True)
class SqsRecord:
    """One record of the batch."""

    id: str
    """The message id of SQS, which Lambda calls itemIdentifier."""
    group: str
    """Its FIFO group, or '' if it has none."""
    source_arn: str
    raw: Mapping[str, Any] = field(repr=False)
    """The message as `ReceiveMessage` would have returned it."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of one function, for all its batches."""

    handler: Handler
    concurrency: int
    reserve_seconds: float
    timeout_seconds: float | None
    clock: Clock
    on_error: OnError | None = None


@dataclass(frozen=True, slots=True)
class InvocationDeadlines:
    """The deadlines of one invocation, as monotonic times."""

    start_until: float
    """From here on no record is started, because its time would not suffice."""
    stop_at: float
    """Handlers are asked to stop."""
    cut_at: float
    """Handlers that still run lose their leases, because the function must return."""
    return_by: float
    """The function returns without waiting for threads that still run."""


def plan_deadlines(
    now: float, left_seconds: float, reserve_seconds: float, timeout_seconds: float | None
) -> InvocationDeadlines:
    """Return the deadlines of an invocation that has this much time left."""
    end = now + left_seconds
    stop_at = end - reserve_seconds
    return InvocationDeadlines(
        start_until=stop_at - (timeout_seconds or 0.0),
        stop_at=stop_at,
        cut_at=end - reserve_seconds / 2,
        return_by=end - reserve_seconds / 4,
    )


@dataclass(frozen=True, slots=True, eq=False)
class BatchEntry(Generic[M]):
    """One message of the batch whose lease this invocation holds."""

    id: str
    message: M


Lane = deque[BatchEntry[M]]
"""The messages of one lane that wait to be started."""


def drain(waiting: deque[T], take: Callable[[deque[T]], T] = deque.popleft) -> Iterator[T]:
    """Take the waiting elements one after the other until none is left.

    Threads may share them: `take` is atomic, so each element is taken once.
    """
    with suppress(IndexError):
        while True:
            yield take(waiting)


class Invocation(Generic[M]):
    """One batch in one invocation. Call `run` once."""

    def __init__(
        self,
        queue: "SQSQueue[M]",
        batch: Sequence[SqsRecord],
        options: BatchOptions,
        times: InvocationDeadlines,
    ) -> None:
        self._queue, self._batch = queue, batch
        self._options, self._times, self._clock = options, times, options.clock
        self._events = add_error_callback(queue.events, options.on_error)
        self._keeper = LeaseKeeper(options.clock, self._events)
        self._lanes: list[Lane[M]] = []
        self._open: dict[BatchEntry[M], float | None] = {}  # the start time, if it was started
        self._done: list[Lease] = []
        self._results: dict[str, SettleResult] = {}
        self._writing = Lock()
        self._stopping, self._give_up, self._over = Event(), Event(), Event()
        self._threads: list[Thread] = []

    def run(self) -> set[str]:
        """Handle the batch, and return the ids of messages that need not be delivered again.

        All other messages are not certainly done.
        """
        try:
            behind = self._claim_batch()
            if self._open:
                self._keeper.start()
            if behind:
                self._start_thread("give-back", lambda: self._give_back(behind))
            untaken = deque(self._lanes)
            for number in range(min(self._options.concurrency, len(self._lanes))):
                self._start_thread(f"slot-{number + 1}", lambda: self._work(untaken))
            self._wait()
        finally:
            self._end()
            self._queue.events.flush()  # Lambda may freeze the process until the next batch
        with self._writing:
            return {id for id, settled in self._results.items() if settled in _SETTLED}

    # -- the start

    def _claim_batch(self) -> list[BatchEntry[M]]:
        """Lease the messages and queue them, and return those that must not be started.

        These are behind a message of the same lane whose lease could not be taken.
        """
        taken = self._queue.adopt_deliveries(
            [record.raw for record in self._batch], until=self._times.cut_at
        )
        lanes: dict[str, Lane[M]] = {}
        behind: list[BatchEntry[M]] = []
        broken: set[str] = set()
        for record, message in zip(self._batch, taken, strict=True):
            lane = record.group if self._queue.fifo else record.id
            if isinstance(message, SettleResult):
                self._results[record.id] = message
                if message not in _SETTLED:
                    broken.add(lane)
                continue
            entry = BatchEntry(record.id, message)
            self._hold(entry)
            waiting = behind if lane in broken else lanes.setdefault(lane, deque())
            waiting.append(entry)
        self._lanes = list(lanes.values())
        return behind

    def _hold(self, entry: BatchEntry[M]) -> None:
        lease = get_lease(entry.message)
        self._open[entry] = None
        self._keeper.hold(lease)
        name, deadline = self._queue.name, lease.deadline
        self._events.emit(Claimed(name, lease.message_id, lease.attempt, deadline))

    # -- waiting, in the thread that Lambda called

    def _wait(self) -> None:
        self._wait_until(self._times.start_until)
        if rest := self._close_lanes():
            self._start_thread("give-back", lambda: self._give_back(rest))
        self._wait_until(self._times.stop_at)
        self._stopping.set()
        self._wait_until(self._times.cut_at)

    def _close_lanes(self) -> list[BatchEntry[M]]:
        """Start nothing more, and return the messages that were not started.

        The last message of a lane is taken first. Otherwise a slot could meanwhile start a
        message that is behind one taken here.
        """
        return [entry for lane in self._lanes for entry in [*drain(lane, deque.pop)][::-1]]

    def _wait_until(self, at: float) -> None:
        """Wait until that time, or until all messages are settled."""
        while not self._all_settled() and (left := at - self._clock.monotonic()) > 0:
            self._give_up_overdue()
            tick = left if self._options.timeout_seconds is None else min(left, _TICK_SECONDS)
            self._clock.wait(self._over, None if tick == inf else tick)

    def _all_settled(self) -> bool:
        with self._writing:
            return not self._open

    def _give_up_overdue(self) -> None:
        timeout, now = self._options.timeout_seconds, self._clock.monotonic()
        for entry, started in self._list_unsettled():
            if timeout is not None and started is not None and now - started >= timeout:
                get_lease(entry.message).lose(f"timed out after {timeout:g} s")

    def _list_unsettled(self) -> list[tuple[BatchEntry[M], float | None]]:
        with self._writing:
            return list(self._open.items())

    # -- the end

    def _end(self) -> None:
        """Stop everything that renews, settles or waits for this invocation.

        Only a handler may continue to run, because a thread cannot be killed. Its lease is
        lost, so it cannot settle its message.
        """
        self._close_lanes()
        self._stopping.set()
        self._give_up.set()
        for entry, _ in self._list_unsettled():
            get_lease(entry.message).lose("the invocation ended before the work was done")
        try:
            self._start_thread("farewell", self._let_go)
        except RuntimeError:  # no more threads can be started
            self._let_go()
        for thread in self._threads:
            thread.join(self._max_join_seconds())
        if survivors := [thread.name for thread in self._threads if thread.is_alive()]:
            _log.warning(
                "batch_overrun queue=%s running=%d threads=%s: a thread cannot be killed; its "
                "message is delivered again when its lease has expired",
                self._queue.name,
                len(survivors),
                ",".join(survivors),
            )

    def _let_go(self) -> None:
        """Stop renewing, which may wait for a call, and leave the done messages to Lambda."""
        self._keeper.stop()
        for lease in self._done:
            lease.release("left to the event source")

    def _max_join_seconds(self) -> float:
        quarter = self._options.reserve_seconds / 4
        return max(0.01, min(quarter, self._times.return_by - self._clock.monotonic()))

    def _start_thread(self, name: str, work: Callable[[], None]) -> None:
        # Daemon threads: a handler that never returns must not keep the runtime from exiting.
        run = copy_context().run  # keeps the context of the caller's tracing and logging
        thread = Thread(target=run, args=(work,), name=f"holdfast-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    # -- working, in the threads

    def _work(self, untaken: "deque[Lane[M]]") -> None:
        """Handle one lane after the other, each until a message of it fails."""
        executor = DirectExecutor(self._options.handler, self._make_context)
        try:
            for lane in drain(untaken):
                for entry in drain(lane):
                    if self._handle(executor, entry) not in _SETTLED:
                        self._give_back(drain(lane))
        finally:
            executor.close()

    def _make_context(self, message: M, lease: Lease) -> Context:
        return Context(self._queue, message, lease, self._stopping, self._clock)

    def _handle(self, executor: DirectExecutor[M], entry: BatchEntry[M]) -> SettleResult:
        started = self._clock.monotonic()
        with self._writing:
            self._open[entry] = started
        settled = SettleResult.ABANDONED
        try:
            if started >= self._times.start_until:  # the lanes are not closed yet
                settled = self._settle(entry, GiveBack(), 0.0)
            elif self._is_held(entry):
                lease = get_lease(entry.message)
                outcome = execute_attempt(self._queue, executor, entry.message, lease)
                settled = self._settle(entry, outcome, self._clock.monotonic() - started)
                del outcome  # its exception refers to this frame
        finally:
            self._note(entry, settled)
        return settled

    def _is_held(self, entry: BatchEntry[M]) -> bool:
        """Check the lease, which may have been lost while the message waited to be started."""
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
            self._events,
            seconds=seconds,
            give_up=self._give_up,
        )

    def _complete(self, entry: BatchEntry[M], seconds: float) -> SettleResult:
        """Record that the message is done, without releasing its lease.

        Lambda deletes the message when the function returns. It must not be delivered again
        before that, so the keeper renews it until the keeper is stopped.
        """
        if not self._is_held(entry):
            return SettleResult.ABANDONED
        lease = get_lease(entry.message)
        done = Completed(self._queue.name, lease.message_id, lease.attempt, seconds)
        self._events.emit(done)
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
