"""Settling turns one outcome into one queue call. No other module settles messages."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from threading import Event, Lock
from typing import Generic, assert_never

from holdfast.core.backoff import Backoff
from holdfast.core.clock import Clock
from holdfast.core.errors import (
    LeaseLost,
    MalformedMessage,
    MessageTooLarge,
    NotLeased,
    QueueUnavailable,
)
from holdfast.core.events import (
    Completed,
    DeadLettered,
    Events,
    GivenBack,
    LeaseAtRisk,
    Retried,
)
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.manager import QueueManager
from holdfast.core.queue.message import M, get_lease
from holdfast.core.worker.context import Context
from holdfast.core.worker.outcome import Abandoned, Done, GiveBack, Outcome, Reject, Retry

# Retry soon. The work is done, and if this call fails, the work is done a second time.
_RETRY_BACKOFF = Backoff(first_seconds=0.05, factor=2.0, max_seconds=2.0)

# An error that does not mean "unavailable" may be a bug, and would repeat forever.
_MAX_UNKNOWN_TRIES = 5

# The queue would refuse the same message again, however long the lease is held.
_PERMANENT = (MalformedMessage, MessageTooLarge)

_random = Random()


class SettleResult(Enum):
    """What happened to the message. WorkerReport has a count for each."""

    # Enum hashes by name in Python code, which is slow for a count per message.
    __hash__ = object.__hash__

    COMPLETED = "completed"
    RETRIED = "retried"
    DEAD_LETTERED = "dead-lettered"
    GIVEN_BACK = "given back"
    ABANDONED = "abandoned"


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

    When `stopping` is set, handlers should come to an end. When `give_up` is set, settling no
    longer waits for a queue that does not respond, and watchdogs end the work of their
    children.
    """

    def __init__(self, queue: QueueManager[M], events: Events, clock: Clock) -> None:
        self.queue = queue
        self.events = events
        self.clock = clock
        self.stopping = Event()
        self.give_up = Event()
        self.make_context = partial(Context, queue, stopping=self.stopping, clock=clock)
        self.lost_until = 0.0
        """Monotonic. When the last of the lost leases has also run out at the queue."""
        self._leases: set[Lease] = set()
        self._counts = dict.fromkeys(SettleResult, 0)
        self._dead_lettered_before = queue.dead_lettered_by_poll
        self._lock = Lock()

    def add(self, leases: Iterable[Lease]) -> None:
        """Add claimed messages. They stay in flight until they are settled."""
        self._leases.update(leases)

    def get_leases(self) -> tuple[Lease, ...]:
        """Return the leases of claimed messages that are not settled, also lost ones."""
        return tuple(self._leases)

    def settle(self, message: M, outcome: Outcome, seconds: float = 0.0) -> None:
        """Settle a message and count the result."""
        result = settle(
            self.queue, message, outcome, self.events, seconds=seconds, give_up=self.give_up
        )
        lease = get_lease(message)
        with self._lock:  # remove and count in one step, or a report could miss the message
            self._counts[result] += 1
            self._leases.discard(lease)
            if result is SettleResult.ABANDONED:
                self.lost_until = max(self.lost_until, lease.deadline)

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
