"""Settling turns one outcome into one queue call. Only acks that share a call do without it."""

from random import Random
from threading import Event
from typing import assert_never

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
from holdfast.lease.lease import Lease
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import M, get_lease
from holdfast.queue.states import SettleResult as SettleResult
from holdfast.worker.outcome import Abandoned, Done, GiveBack, Outcome, Reject, Retry

# Retry soon. The work is done, and if this call fails, the work is done a second time.
_RETRY_BACKOFF = Backoff(first_seconds=0.05, factor=2.0, max_seconds=2.0)

# An error that does not mean "unavailable" may be a bug, and would repeat forever.
_MAX_UNKNOWN_TRIES = 5

# The queue would refuse the same message again, however long the lease is held.
_PERMANENT = (MalformedMessage, MessageTooLarge)

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
