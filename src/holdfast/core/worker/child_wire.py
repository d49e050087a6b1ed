"""What the worker and its child processes tell each other. Plain data, nothing pickled
but the two things that are code: the handler and the message's model.

    worker ─▶ child   MODEL once per message type, WORK, ANSWER to a question
    child  ─▶ worker  READY or BROKEN after the start, SAVE and LOAD (questions), OUTCOME

Every frame begins with the number of the attempt it is about, 0 during the start: an answer
that comes late or twice must not settle the message after it. What a child says is checked
as if a stranger said it.

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
from holdfast.core.lease.lease import Lease
from holdfast.core.process.frames import BrokenFrame
from holdfast.core.worker.outcome import Done, GiveBack, Outcome, Reject, Retry
from holdfast.core.worker.outcome_mapping import is_delay, outcome_of

MODEL, WORK, ANSWER = b"m", b"w", b"a"
READY, BROKEN, SAVE, LOAD, OUTCOME = b"r", b"b", b"s", b"l", b"o"

PULSE, MOVED = b".", b"+"
DEADLINE, STOPPING = b"d", b"s"
CONTROL = Struct("!cd")
_NUMBER = Struct("!Q")

_ERRORS = {
    kind.__name__: kind
    for kind in (LeaseLost, MalformedMessage, MessageTooLarge, NotLeased, QueueUnavailable)
}


def numbered(number: int, frame: bytes) -> bytes:
    """Mark a frame with the attempt it is about."""
    return _NUMBER.pack(number) + frame


def split_number(frame: bytes) -> tuple[int, bytes]:
    """The number of the attempt, and the frame. Raises BrokenFrame when it has none."""
    if len(frame) <= _NUMBER.size:
        raise BrokenFrame("it is too short")
    return _NUMBER.unpack_from(frame)[0], frame[_NUMBER.size :]


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """One attempt, as the child is told of it."""

    message_id: str
    attempt: int
    fence: int
    deadline: float
    cap_at: float | None
    body: bytes


def pack_call(lease: Lease, body: bytes) -> bytes:
    head = [lease.message_id, lease.attempt, lease.fence, lease.deadline, lease.cap_at]
    return WORK + json.dumps(head).encode() + b"\n" + body


def unpack_call(frame: bytes) -> HandlerCall:
    head, _, body = frame[1:].partition(b"\n")
    message_id, attempt, fence, deadline, cap_at = json.loads(head)
    return HandlerCall(message_id, attempt, fence, deadline, cap_at, body)


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
    """Raises BrokenFrame for anything but what `pack_outcome` makes."""
    if frame == OUTCOME:
        return Done()
    match _parsed(frame[1:]):
        case ["retry", after_seconds, str(reason), str() | None as detail, str(told)] if (
            is_delay(after_seconds)
        ):
            return outcome_of(Retry(after_seconds, reason, detail, told))
        case ["reject", None, str(reason), str() | None as detail, str(told)]:
            return outcome_of(Reject(reason, detail, told))
        case ["give back", None, "", None, ""]:
            return GiveBack()
    raise BrokenFrame("its outcome is none")


def pack_save(checkpoint: Any) -> bytes:
    """Raises MalformedMessage for what is not plain data."""
    try:
        return SAVE + json.dumps(checkpoint, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"the checkpoint cannot be written as JSON: {error}") from None


def unpack_save(frame: bytes) -> Any:
    """Raises BrokenFrame for anything but what `pack_save` makes."""
    return _parsed(frame[1:])


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise BrokenFrame("it is not JSON") from None  # the error's text would quote it


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


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
