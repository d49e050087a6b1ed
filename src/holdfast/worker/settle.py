"""Settling turns one outcome into one queue call. No other module settles messages.

While a worker has claimed more messages than it has started, the acks of finished messages
wait for each other for a moment and share one call. The other outcomes are settled at once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
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
from holdfast.queue.states import SettleResult as SettleResult
from holdfast.worker.context import Context
from holdfast.worker.outcome import (
    DONE,
    Abandoned,
    Done,
    GiveBack,
    Outcome,
    Reject,
    Retry,
)

# Retry soon. The work is done, and if this call fails, the work is done a second time.
_RETRY_BACKOFF = Backoff(first_seconds=0.05, factor=2.0, max_seconds=2.0)

# An error that does not mean "unavailable" may be a bug, and would repeat forever.
_MAX_UNKNOWN_TRIES = 5

# The queue would refuse the same message again, however long the lease is held.
_PERMANENT = (MalformedMessage, MessageTooLarge)

# A crash repeats the work whose ack waits, so it waits no longer than a few calls take.
_MAX_ACK_WAIT_SECONDS = 0.01

_random = Random()


def settle(
    queue: QueueManager[M],
    message: M,
    outcome: Outcome,
    events: Events,
    *,
    seconds: float = 0.0,
    give_up: Event | None = None,
) -> SettleResult:
    """Make the queue call for `outcome` and return its result. This never raises.

    A backend error is retried while the lease lives, or until `give_up` is set. A permanent
    refusal is not retried. After that the lease is given up, and the message comes back when
    the lease runs out. ABANDONED also means that the lease was lost, so its new holder
    settles the message. (The keeper reports the loss once.)
    """
    lease = get_lease(message)
    tries = 0
    while True:
        try:
            return _settle(queue, message, lease, outcome, events, seconds)
        except (LeaseLost, NotLeased):
            return SettleResult.ABANDONED
        except Exception as error:
            tries += 1
            if not _wait_for_retry(queue, lease, error, tries, events, give_up or Event()):
                return SettleResult.ABANDONED


def _settle(
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
        case Retry(_, reason, detail, log_reason, error) if attempt >= queue.max_attempts:
            failed = describe_failures(attempt)
            queue.dead_letter(message, f"{failed}, last: {reason}", detail=detail)
            log_reason = f"{failed}, last: {log_reason}"
            events.emit(DeadLettered(name, id, attempt, log_reason, error, seconds))
            return SettleResult.DEAD_LETTERED
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


def describe_failures(attempts: int) -> str:
    """Return how often a message failed, for the reason of a dead letter."""
    return "failed once" if attempts == 1 else f"failed {attempts} times"


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


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The attempts of one run of a worker, counted by result."""

    completed: int
    retried: int
    dead_lettered: int
    given_back: int
    abandoned: int  # lost, or left until the lease runs out


class InFlight(Generic[M]):
    """Settles the messages of one run and counts the results. The run's parts share it.

    `ready` holds the messages that were claimed and not started. When `stopping` is set,
    handlers should come to an end. When `give_up` is set, settling no longer waits for a
    queue that does not respond, and watchdogs end the work of their children.

    Acks share calls only if `ask_for_flush` is set. It is called with the time at which
    `flush_acks` must be called at the latest.
    """

    def __init__(self, queue: QueueManager[M], events: Events, clock: Clock) -> None:
        self.queue = queue
        self.events = events
        self.clock = clock
        self.ready: deque[M] = deque()
        self.ask_for_flush: Callable[[float], None] | None = None
        self.stopping = Event()
        self.give_up = Event()
        self.make_context = partial(Context, queue, stopping=self.stopping, clock=clock)
        self.lost_until = 0.0
        """Monotonic. When the last of the lost leases has also run out at the queue."""
        # With the time when the work started. Infinity means that no slot works on it.
        self._leases: dict[Lease, float] = {}
        self._deferred: list[tuple[M, float]] = []
        self._flush_at = inf
        self._counts = dict.fromkeys(SettleResult, 0)
        self._dead_lettered_before = queue.dead_lettered_by_poll
        self._lock = Lock()

    def add(self, leases: Iterable[Lease]) -> None:
        """Add claimed messages. They stay in flight until they are settled."""
        self._leases.update(dict.fromkeys(leases, inf))

    def note_start(self, lease: Lease, now: float) -> None:
        """Note that a slot starts to work on a claimed message."""
        self._leases[lease] = now

    def get_leases(self) -> tuple[Lease, ...]:
        """Return the leases of claimed messages that are not settled, also lost ones."""
        return tuple(self._leases.copy())

    def get_started(self) -> list[tuple[Lease, float]]:
        """Return the leases of started messages that are not settled, with their start."""
        return [each for each in self._leases.copy().items() if each[1] < inf]

    def count_waiting(self) -> int:
        """Count the messages that wait to be started, given back or acked."""
        return sum(lease.live for lease, at in self._leases.copy().items() if at == inf)

    def lose_waiting(self, reason: str) -> None:
        """Give up the messages that wait, so that they come back when their leases end."""
        for lease, started_at in self._leases.copy().items():
            if started_at == inf:
                lease.lose(reason)

    # -- settling

    def settle(self, message: M, outcome: Outcome, seconds: float = 0.0) -> None:
        """Settle a message and count the result."""
        result = settle(
            self.queue, message, outcome, self.events, seconds=seconds, give_up=self.give_up
        )
        lease = get_lease(message)
        with self._lock:  # remove and count in one step, or a report could miss the message
            self._counts[result] += 1
            self._leases.pop(lease, None)
            if result is SettleResult.ABANDONED:
                self.lost_until = max(self.lost_until, lease.deadline)

    def finish(self, message: M, outcome: Outcome, seconds: float) -> None:
        """Settle a message whose handler ended, now or with the next acks."""
        if self.try_defer(message, outcome, seconds):
            return
        if self.can_share_ack(outcome):
            self.ack_all([(message, seconds)])
        else:
            self.settle(message, outcome, seconds)
            self.flush_acks()

    def can_share_ack(self, outcome: Outcome) -> bool:
        """Return whether the outcome is settled by an ack that others may share."""
        return (
            self.ask_for_flush is not None
            and isinstance(outcome, Done)
            and outcome.result is None
        )

    def try_defer(self, message: M, outcome: Outcome, seconds: float) -> bool:
        """Let an ack wait for others, if another message is ready and the batch has room.

        Returns False if the message must be settled now. This makes no call to the queue.
        """
        if not (self.ready and self.can_share_ack(outcome)):
            return False
        with self._lock:
            if len(self._deferred) + 1 >= self.queue.poll_batch:
                return False
            self._deferred.append((message, seconds))
            self._leases[get_lease(message)] = inf  # so that no time limit applies to it
            is_first = len(self._deferred) == 1
        if is_first and self.ask_for_flush is not None:
            flush_at = self._flush_at = self.clock.monotonic() + _MAX_ACK_WAIT_SECONDS
            self.ask_for_flush(flush_at)
        return True

    def ack_all(self, finished: Sequence[tuple[M, float]]) -> None:
        """Send these acks and those that wait. Each message has the seconds of its handler."""
        with self._lock:
            finished = [*self._deferred, *finished]
            self._deferred, self._flush_at = [], inf
        match finished:
            case []:
                pass
            case [(message, seconds)]:
                self.settle(message, DONE, seconds)
            case _:
                self._ack_many(finished)

    def flush_acks(self, now: float = inf) -> float:
        """Send the acks that wait since long enough, and return when the next ones are due."""
        if now >= self._flush_at:
            self.ack_all([])
        return self._flush_at

    def _ack_many(self, finished: Sequence[tuple[M, float]]) -> None:
        try:
            self.queue.ack_many([message for message, _ in finished])
        except Exception:  # one ack failed, or all: settle each by itself, with retries
            for message, seconds in finished:
                self.settle(message, DONE, seconds)
            return
        name = self.queue.name
        if self.events.has_subscribers:
            for message, seconds in finished:
                lease = get_lease(message)
                self.events.emit(Completed(name, lease.message_id, lease.attempt, seconds))
        with self._lock:
            self._counts[SettleResult.COMPLETED] += len(finished)
            for message, _ in finished:
                self._leases.pop(get_lease(message), None)

    def make_report(self) -> WorkerReport:
        """Return the counts of this run.

        Messages still in flight count as abandoned, because their handlers may never return.
        Messages that `poll` dead-lettered are included, although no handler saw them.
        """
        with self._lock:
            counts, unsettled = self._counts.copy(), len(self._leases)
        counts[SettleResult.ABANDONED] += unsettled
        by_poll = self.queue.dead_lettered_by_poll - self._dead_lettered_before
        counts[SettleResult.DEAD_LETTERED] += by_poll
        return WorkerReport(**{result.name.lower(): n for result, n in counts.items()})
