"""What the worker and its child processes tell each other. Plain data, nothing pickled
but the two things that are code: the handler and the message's model.

    worker ─▶ child   MODEL once per message type, WORK, ANSWER to a question
    child  ─▶ worker  READY or BROKEN after the start, SAVE and LOAD (questions), OUTCOME

On the control line go single records without an answer: the worker tells the lease's
deadline and that it is stopping; the child says that it answers, and whether it moved.
"""

import json
import pickle
from dataclasses import dataclass
from struct import Struct
from typing import Any

from holdfast.core.errors import (
    LeaseLost,
    MalformedMessage,
    MessageTooLarge,
    NotLeased,
    QueueUnavailable,
)
from holdfast.core.lease import Lease
from holdfast.core.outcome import Done, GiveBack, Outcome, Reject, Retry

MODEL, WORK, ANSWER = b"m", b"w", b"a"
READY, BROKEN, SAVE, LOAD, OUTCOME = b"r", b"b", b"s", b"l", b"o"

PULSE, MOVED = b".", b"+"
DEADLINE, STOPPING = b"d", b"s"
CONTROL = Struct("!cd")

_ERRORS = {
    kind.__name__: kind
    for kind in (LeaseLost, MalformedMessage, MessageTooLarge, NotLeased, QueueUnavailable)
}


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt, as the child is told of it."""

    message_id: str
    attempt: int
    fence: int
    deadline: float
    cap_at: float | None
    body: bytes


def pack_work(lease: Lease, body: bytes) -> bytes:
    head = [lease.message_id, lease.attempt, lease.fence, lease.deadline, lease.cap_at]
    return WORK + json.dumps(head).encode() + b"\n" + body


def unpack_work(frame: bytes) -> Work:
    head, _, body = frame[1:].partition(b"\n")
    message_id, attempt, fence, deadline, cap_at = json.loads(head)
    return Work(message_id, attempt, fence, deadline, cap_at, body)


def pack_model(model: type) -> bytes:
    return MODEL + pickle.dumps(model)


def pack_outcome(outcome: Outcome) -> bytes:
    match outcome:
        case Done():
            return OUTCOME
        case GiveBack():
            said: list[Any] = ["give back", None, "", None, ""]
        case Retry(after_seconds, reason, detail, told):
            said = ["retry", after_seconds, reason, detail, told]
        case Reject(reason, detail, told):
            said = ["reject", None, reason, detail, told]
        case _:
            raise TypeError(f"no outcome of a handler: {type(outcome).__name__}")
    return OUTCOME + json.dumps(said).encode()


def unpack_outcome(frame: bytes) -> Outcome:
    if frame == OUTCOME:
        return Done()
    kind, after_seconds, reason, detail, told = json.loads(frame[1:])
    if kind == "retry":
        return Retry(after_seconds, reason, detail, told)
    if kind == "give back":
        return GiveBack()
    return Reject(reason, detail, told)


def pack_save(checkpoint: Any) -> bytes:
    """Raises MalformedMessage for what is not plain data."""
    try:
        return SAVE + json.dumps(checkpoint, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"the checkpoint cannot be written as JSON: {error}") from None


def unpack_save(frame: bytes) -> Any:
    return json.loads(frame[1:])


def pack_answer(value: Any = None, error: Exception | None = None) -> bytes:
    problem = None if error is None else [type(error).__name__, str(error)]
    return ANSWER + json.dumps([value, problem]).encode()


def unpack_answer(frame: bytes) -> Any:
    """The value; raises the error that was answered instead."""
    value, problem = json.loads(frame[1:])
    if problem is not None:
        name, text = problem
        raise _ERRORS[name](text) if name in _ERRORS else OSError(f"{name}: {text}")
    return value
