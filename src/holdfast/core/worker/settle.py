"""Settling: one outcome becomes one queue call. Nothing else in Holdfast settles."""

from enum import Enum
from random import Random
from threading import Event
from typing import assert_never

from holdfast.core.backoff import Backoff
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
from holdfast.core.queue.message import M, lease_of
from holdfast.core.worker.outcome import Abandoned, Done, GiveBack, Outcome, Reject, Retry

# The queue is asked again soon: the work is done, and only this call stands between it
# and being done a second time.
_AGAIN = Backoff(first_seconds=0.05, factor=2.0, max_seconds=2.0)

# An error that is not the queue being away may well be a bug, and would come for ever.
_TRIES_IF_UNKNOWN = 5

# The queue would refuse the same message again, however long the lease is held.
_PERMANENT = (MalformedMessage, MessageTooLarge)

_random = Random()


class SettleResult(Enum):
    """What became of the message in the end."""

    # Enum hashes by name, in Python; the books are kept once per message.
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
    """Tell the queue what became of the message; never raises.

    An error of the backend is retried while the lease lives, or until `give_up` is set. A
    refusal that is permanent is not retried. Then the lease is let go, and the message
    comes back when it runs out. A lease found lost is ABANDONED: its new holder settles the
    message. (The keeper reports the loss itself, once.)
    """
    lease = lease_of(message)
    tries = 0
    while True:
        try:
            return _settle(queue, message, lease, outcome, events, seconds)
        except (LeaseLost, NotLeased):
            return SettleResult.ABANDONED
        except Exception as error:
            tries += 1
            if not _wait_to_try_again(queue, lease, error, tries, events, give_up or Event()):
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
        case Done():
            queue.ack(message)
            if events.listening:
                events.emit(Completed(name, id, attempt, seconds))
            return SettleResult.COMPLETED
        case Retry(_, reason, detail, told) if attempt >= queue.max_attempts:
            failed = "failed once" if attempt == 1 else f"failed {attempt} times"
            queue.dead_letter(message, f"{failed}, last: {reason}", detail=detail)
            events.emit(DeadLettered(name, id, attempt, f"{failed}, last: {told}"))
            return SettleResult.DEAD_LETTERED
        case Retry(after_seconds, reason, detail, told):
            queue.nack(message, delay_seconds=after_seconds, reason=reason, detail=detail)
            events.emit(Retried(name, id, attempt, after_seconds, told))
            return SettleResult.RETRIED
        case Reject(reason, detail, told):
            queue.dead_letter(message, reason, detail=detail)
            events.emit(DeadLettered(name, id, attempt, told))
            return SettleResult.DEAD_LETTERED
        case GiveBack():
            queue.release(message)
            events.emit(GivenBack(name, id, attempt))
            return SettleResult.GIVEN_BACK
        case Abandoned():
            return SettleResult.ABANDONED
        case _:
            assert_never(outcome)


def _wait_to_try_again(
    queue: QueueManager[M],
    lease: Lease,
    error: Exception,
    tries: int,
    events: Events,
    give_up: Event,
) -> bool:
    """True when it is time for another try; False when the lease was let go instead."""
    name, id, attempt = queue.name, lease.message_id, lease.attempt
    problem = f"{type(error).__name__}: {error}"
    left = lease.deadline - queue.clock.monotonic()
    if tries == 1:
        events.emit(LeaseAtRisk(name, id, attempt, problem, left))
    known = isinstance(error, OSError | QueueUnavailable)
    may_pass = known or tries < _TRIES_IF_UNKNOWN
    if may_pass and not isinstance(error, _PERMANENT):
        pause = min(_AGAIN.delay(tries, _random), max(left, 0.0))
        if not queue.clock.wait(give_up, pause):
            return True
    # Not renewed any more, it comes back by itself; held on to, it never would.
    lease.lose(f"it could not be settled: {problem}")
    return False
