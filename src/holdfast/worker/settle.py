"""Settling: the messages that one run of a worker has claimed, and the end of each.

`settle` turns one outcome into one queue call. While a worker has claimed more messages than it
has started, the acks of finished messages wait for each other for a moment and share one call.
The other outcomes are settled at once.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from threading import Event, Lock
from typing import Generic, assert_never

from holdfast.errors import (
    LeaseLost,
    MalformedMessage,
    MessageTooLarge,
    NotLeased,
    QueueUnavailable,
)
from holdfast.events import (
    Completed,
    DeadLettered,
    Events,
    GivenBack,
    LeaseAtRisk,
    Retried,
)
from holdfast.lease.backoff import Backoff
from holdfast.lease.clock import Clock
from holdfast.lease.lease import Lease
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import M, get_lease
from holdfast.queue.message import SettleResult as SettleResult
from holdfast.worker.outcome import (
    DONE,
    Abandoned,
    Done,
    GiveBack,
    Outcome,
    Reject,
    Retry,
    reject_last,
)
from holdfast.worker.runner import Context

# A crash repeats the work whose ack waits, so it waits no longer than a few calls take.
_MAX_ACK_WAIT_SECONDS = 0.01

# Retry soon. The work is done, and if this call fails, the work is done a second time.
_RETRY_BACKOFF = Backoff(first_seconds=0.05, factor=2.0, max_seconds=2.0)

# An error that does not mean "unavailable" may be a bug, and would repeat forever.
_MAX_UNKNOWN_TRIES = 5

# The queue would refuse the same message again, however long the lease is held.
_PERMANENT = (MalformedMessage, MessageTooLarge)

_random = Random()


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The attempts of one run of a worker, counted by result."""

    completed: int
    retried: int
    dead_lettered: int
    given_back: int
    abandoned: int  # lost, or left until the lease runs out


@dataclass(eq=False, slots=True)
class ClaimedMessage(Generic[M]):
    """A message that this worker claimed, with its lease."""

    message: M
    lease: Lease
    started_at: float = inf  # infinity means that no slot works on it
    seconds: float = 0.0  # that its handler took


def is_ack(outcome: Outcome) -> bool:
    """Return whether an outcome is settled by an ack alone."""
    return isinstance(outcome, Done) and outcome.result is None


class InFlight(Generic[M]):
    """Settles the messages of one run and counts the results. The run's parts share it.

    `ready` holds the messages that were claimed and not started. When `stopping` is set,
    handlers should come to an end. When `give_up` is set, settling no longer waits for a
    queue that does not respond, and watchdogs end the work of their children.

    Acks wait for each other only if `ask_for_flush` is set. It is called with the time at
    which `flush_acks` must be called at the latest.
    """

    def __init__(self, queue: QueueManager[M], events: Events, clock: Clock) -> None:
        self.queue = queue
        self.events = events
        self.clock = clock
        self.ready: deque[ClaimedMessage[M]] = deque()
        self.ask_for_flush: Callable[[float], None] | None = None
        self.stopping = Event()
        self.give_up = Event()
        self.make_context = partial(Context, queue, stopping=self.stopping, clock=clock)
        self.lost_until = 0.0
        """Monotonic. When the last of the lost leases has also run out at the queue."""
        self.claimed: set[ClaimedMessage[M]] = set()
        """The messages that are not settled, also those of lost leases. Iterate over a copy."""
        self._acks: list[ClaimedMessage[M]] = []  # that wait to be sent
        self._flush_at = inf
        self._counts = dict.fromkeys(SettleResult, 0)
        self._dead_lettered_before = queue.dead_lettered_by_poll
        self._lock = Lock()

    def get_started(self) -> list[ClaimedMessage[M]]:
        """Return those that a slot works on."""
        return [claimed for claimed in self.claimed.copy() if claimed.started_at < inf]

    def count_waiting(self) -> int:
        """Count the messages that wait to be started, given back or acked."""
        return sum(
            claimed.lease.live and claimed.started_at == inf for claimed in self.claimed.copy()
        )

    def lose_waiting(self, reason: str) -> None:
        """Give up the messages that wait, so that they come back when their leases end."""
        for claimed in self.claimed.copy():
            if claimed.started_at == inf:
                claimed.lease.lose(reason)

    # -- settling

    def settle(self, claimed: ClaimedMessage[M], outcome: Outcome) -> None:
        """Settle a message: with the next acks if that is possible, or else now."""
        if not is_ack(outcome):
            self._settle_alone(claimed, outcome)
            self.flush_acks()
        elif self.add_ack(claimed):
            self.flush_acks()

    def add_ack(self, claimed: ClaimedMessage[M]) -> bool:
        """Let an ack wait for others, without a call to the queue.

        Returns whether the caller must call `flush_acks`, because no other message is ready
        or the acks fill a call.
        """
        with self._lock:
            claimed.started_at = inf  # so that no time limit applies to it
            self._acks.append(claimed)
            waiting = len(self._acks)
            if self.ask_for_flush is None or not self.ready or waiting >= self.queue.poll_batch:
                return True
            if waiting > 1:
                return False
            flush_at = self._flush_at = self.clock.monotonic() + _MAX_ACK_WAIT_SECONDS
        self.ask_for_flush(flush_at)
        return False

    def flush_acks(self, now: float = inf) -> float:
        """Send the acks if they are due at `now`, and return when the next ones are."""
        while self._acks and (now >= self._flush_at or self._flush_at == inf):
            with self._lock:
                size = self.queue.poll_batch
                acks, self._acks, self._flush_at = self._acks[:size], self._acks[size:], inf
            if len(acks) == 1:
                self._settle_alone(acks[0], DONE)
            elif acks:
                self._ack_together(acks)
        return self._flush_at

    def _settle_alone(self, claimed: ClaimedMessage[M], outcome: Outcome) -> None:
        result = settle(
            self.queue,
            claimed.message,
            outcome,
            self.events,
            lease=claimed.lease,
            seconds=claimed.seconds,
            give_up=self.give_up,
        )
        with self._lock:  # remove and count in one step, or a report could miss the message
            self._counts[result] += 1
            self.claimed.discard(claimed)
            if result is SettleResult.ABANDONED:
                self.lost_until = max(self.lost_until, claimed.lease.deadline)

    def _ack_together(self, acks: list[ClaimedMessage[M]]) -> None:
        try:
            self.queue.ack_many([claimed.message for claimed in acks])
        except Exception:  # one ack failed, or all: settle each by itself, with retries
            for claimed in acks:
                self._settle_alone(claimed, DONE)
            return
        if self.events.has_subscribers:
            name = self.queue.name
            for claimed in acks:
                id, attempt = claimed.lease.message_id, claimed.lease.attempt
                self.events.emit(Completed(name, id, attempt, claimed.seconds))
        with self._lock:
            self._counts[SettleResult.COMPLETED] += len(acks)
            self.claimed.difference_update(acks)

    def make_report(self) -> WorkerReport:
        """Return the counts of this run.

        Messages still in flight count as abandoned, because their handlers may never return.
        Messages that `poll` dead-lettered are included, although no handler saw them.
        """
        with self._lock:
            counts, unsettled = self._counts.copy(), len(self.claimed)
        counts[SettleResult.ABANDONED] += unsettled
        by_poll = self.queue.dead_lettered_by_poll - self._dead_lettered_before
        counts[SettleResult.DEAD_LETTERED] += by_poll
        return WorkerReport(**{result.name.lower(): n for result, n in counts.items()})


def settle(
    queue: QueueManager[M],
    message: M,
    outcome: Outcome,
    events: Events,
    *,
    lease: Lease | None = None,
    seconds: float = 0.0,
    give_up: Event | None = None,
) -> SettleResult:
    """Make the queue call for `outcome` and return its result. This never raises.

    A backend error is retried while the lease lives, or until `give_up` is set. A permanent
    refusal is not retried. After that the lease is given up, and the message comes back when
    the lease runs out. ABANDONED also means that the lease was lost, so its new holder
    settles the message. (The keeper reports the loss once.)
    """
    lease = lease or get_lease(message)
    tries = 0
    while True:
        try:
            return _call_queue(queue, message, lease, outcome, events, seconds)
        except (LeaseLost, NotLeased):
            return SettleResult.ABANDONED
        except Exception as error:
            tries += 1
            if not _wait_for_retry(queue, lease, error, tries, events, give_up or Event()):
                return SettleResult.ABANDONED


def _call_queue(
    queue: QueueManager[M],
    message: M,
    lease: Lease,
    outcome: Outcome,
    events: Events,
    seconds: float,
) -> SettleResult:
    name, id, attempt = queue.name, lease.message_id, lease.attempt
    match outcome:
        case Done(result):
            if result is not None and "results" in queue.capabilities:
                queue.save_result(message, result)
            queue.ack(message)
            if events.has_subscribers:
                events.emit(Completed(name, id, attempt, seconds))
            return SettleResult.COMPLETED
        case Retry() if attempt >= queue.max_attempts:
            rejection = reject_last(outcome, attempt)
            return _call_queue(queue, message, lease, rejection, events, seconds)
        case Retry(after_seconds, reason, detail, log_reason, error):
            queue.nack(message, delay_seconds=after_seconds, reason=reason, detail=detail)
            events.emit(Retried(name, id, attempt, after_seconds, log_reason, error, seconds))
            return SettleResult.RETRIED
        case Reject(reason, detail, log_reason, error):
            queue.dead_letter(message, reason, detail=detail)
            events.emit(DeadLettered(name, id, attempt, log_reason, error, seconds))
            return SettleResult.DEAD_LETTERED
        case GiveBack():
            queue.release(message)
            events.emit(GivenBack(name, id, attempt))
            return SettleResult.GIVEN_BACK
        case Abandoned():
            return SettleResult.ABANDONED
        case _:
            assert_never(outcome)


def _wait_for_retry(
    queue: QueueManager[M],
    lease: Lease,
    error: Exception,
    tries: int,
    events: Events,
    give_up: Event,
) -> bool:
    """Wait before the next try and return True, or give up the lease and return False."""
    name, id, attempt = queue.name, lease.message_id, lease.attempt
    problem = f"{type(error).__name__}: {error}"
    left = lease.deadline - queue.clock.monotonic()
    if tries == 1:
        events.emit(LeaseAtRisk(name, id, attempt, problem, left))
    is_unavailable = isinstance(error, OSError | QueueUnavailable)
    may_succeed = is_unavailable or tries < _MAX_UNKNOWN_TRIES
    if may_succeed and not isinstance(error, _PERMANENT):
        pause = min(_RETRY_BACKOFF.delay(tries, _random), max(left, 0.0))
        if not queue.clock.wait(give_up, pause):
            return True
    # Renewing would hold the message forever, so stop renewing and let it be redelivered.
    lease.lose(f"it could not be settled: {problem}")
    return False
