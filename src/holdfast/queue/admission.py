"""Admission: what becomes of a claimed message before a handler may get it.

    delivery ──▶ decide ──▶ the message
                       ──▶ PutBack    it is newer than this code, and waits for newer code
                       ──▶ Rejected   malformed, out of attempts, or refused by the queue

A queue claims, and hands over raw bytes and counts. QueueManager acts on the verdict with the
queue's own transitions.
"""

from dataclasses import dataclass
from typing import Any, final

from holdfast.errors import MalformedMessage, NewerSchema
from holdfast.queue.message import Headers, M, MessageCodec, find_id

NEWER_SCHEMA_DELAY_SECONDS = 30.0
"""How long a message that is newer than the code waits for newer code."""


@dataclass(slots=True)
class Delivery:
    """One claim of a message, as the queue knows it.

    `message_id` names a message whose body has no id. `claimed_at` is the monotonic time
    before the claim. `problem` is what keeps the queue itself from delivering the message.
    """

    handle: Any
    message_id: str
    body: bytes
    attempt: int
    fence: int
    claimed_at: float
    taken_over_from: str | None = None  # the worker whose lease ran out
    headers: Headers | None = None
    problem: str | None = None


@final
@dataclass(frozen=True, slots=True)
class PutBack:
    """The message waits for newer code. This claim is not charged as an attempt."""

    message_id: str
    version: int


@final
@dataclass(frozen=True, slots=True)
class Rejected:
    """The message becomes a dead letter.

    Only `log_reason` is logged, because `reason` may quote the message. The claim that finds
    a message out of attempts serves only to dead-letter it, so it is not charged.
    """

    message_id: str
    reason: str
    log_reason: str
    is_exhausted: bool = False


def decide(
    delivery: Delivery, codec: MessageCodec[M], max_attempts: float, has_refunds: bool
) -> M | PutBack | Rejected:
    """Return the message of a delivery, or why no handler may get it.

    If the queue refunds claims, the attempts are checked before the body is decoded. So a body
    that kills its worker while it is decoded becomes a dead letter after the last attempt. The
    claims of a queue that cannot refund them may have been spent waiting for this code, which
    only the decoded body tells.
    """
    if delivery.problem is not None:
        return Rejected(delivery.message_id, delivery.problem, delivery.problem)
    is_exhausted = delivery.attempt > max_attempts
    if is_exhausted and has_refunds:
        return _give_up(delivery, find_id(delivery.body) or delivery.message_id)
    try:
        message = codec.decode(delivery.body)
    except NewerSchema as error:
        return PutBack(error.message_id or delivery.message_id, error.version)
    except MalformedMessage as error:
        message_id = error.message_id or delivery.message_id
        return Rejected(message_id, f"malformed: {error}", "malformed")
    if "id" not in message.__pydantic_fields_set__:
        # Another program sent it. A generated id would change with every delivery.
        message.__dict__["id"] = delivery.message_id
    return _give_up(delivery, message.id) if is_exhausted else message


def _give_up(delivery: Delivery, message_id: str) -> Rejected:
    reason = f"gave up after {delivery.attempt - 1} attempts"
    return Rejected(message_id, reason, reason, is_exhausted=True)
