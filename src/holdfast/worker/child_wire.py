"""The frames between a worker and its child processes.

    worker ─▶ child   MODEL once per message type, WORK, RESPONSE to a request
    child  ─▶ worker  SAVE and LOAD (requests), OUTCOME, PULSE with MOVED after a beat and
                      the progress if the handler reported one

Besides these, there are the frames of every child (`process/frames.py`). The number of a
frame is that of its attempt, which is 0 during the start. So a frame that comes late or twice
cannot settle the next message. Only the handler and the message's model are pickled, because
they are code; the rest is plain data. The worker checks a child's frames as strictly as those
of an untrusted process.

The control pipe carries single records without a response: the lease's deadline, and that
the worker is stopping.
"""

import json
from dataclasses import replace
from math import isfinite
from struct import Struct
from typing import Any

from holdfast.errors import (
    AttemptFailed,
    LeaseLost,
    MalformedMessage,
    MessageTooLarge,
    NotLeased,
    QueueUnavailable,
)
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.lease.lease import Lease
from holdfast.process.frames import BrokenFrame, parse_json
from holdfast.worker.outcome import (
    Done,
    GiveBack,
    Outcome,
    Reject,
    Retry,
    is_delay,
    to_outcome,
)

MODEL, WORK, RESPONSE = b"m", b"w", b"a"
SAVE, LOAD, OUTCOME = b"s", b"l", b"o"

MOVED = b"+"
_PROGRESS = Struct("!d")
CONTROL = Struct("!d")  # a deadline; a pipe never splits so few bytes
STOPPING = -1.0  # in place of a deadline

_NO_SOURCE: Any = None

_ERRORS = {
    kind.__name__: kind
    for kind in (LeaseLost, MalformedMessage, MessageTooLarge, NotLeased, QueueUnavailable)
}


def pack_moved(progress: float | None) -> bytes:
    """Return what a PULSE carries after a beat."""
    return MOVED if progress is None else MOVED + _PROGRESS.pack(progress)


def unpack_moved(moved: bytes) -> float | None:
    """Return the progress after a beat, if any. Raises BrokenFrame if it is invalid."""
    if moved == MOVED:
        return None
    if moved[:1] == MOVED and len(moved) == 1 + _PROGRESS.size:
        progress: float = _PROGRESS.unpack(moved[1:])[0]
        if isfinite(progress):
            return progress
    raise BrokenFrame("its pulse is invalid")


def pack_call(lease: Lease, body: bytes) -> bytes:
    """Make a WORK frame."""
    head = [lease.message_id, lease.attempt, lease.fence, lease.deadline, lease.cap_at]
    return WORK + json.dumps(head).encode() + b"\n" + body


def unpack_call(frame: bytes) -> tuple[Lease, bytes]:
    """Return the lease and the message of a WORK frame, which the worker sent and is trusted.

    Only the worker renews the lease. So this lease has no source, and counts from now.
    """
    head, _, body = frame[1:].partition(b"\n")
    message_id, attempt, fence, deadline, cap_at = json.loads(head)
    now = SYSTEM_CLOCK.monotonic()
    lease = Lease(
        _NO_SOURCE,
        None,
        message_id=message_id,
        attempt=attempt,
        fence=fence,
        claimed_at=now,
        seconds=deadline - now,
        cap_at=cap_at,
    )
    return lease, body


def pack_outcome(outcome: Outcome) -> bytes:
    """Make an OUTCOME frame. Raises TypeError for an outcome that no handler can return.

    An exception stays in the child, because unpickling it would run the child's code. The
    frame says only whether there is one; `detail` is its traceback.
    """
    match outcome:
        case Done(None, ""):
            return OUTCOME
        case Done(result, ignored):
            return OUTCOME + json.dumps(["done", result, ignored]).encode()
        case GiveBack():
            fields: list[Any] = ["give back", None, "", None, "", False]
        case Retry(after_seconds, reason, detail, log_reason, error):
            fields = ["retry", after_seconds, reason, detail, log_reason, error is not None]
        case Reject(reason, detail, log_reason, error):
            fields = ["reject", None, reason, detail, log_reason, error is not None]
        case _:
            raise TypeError(f"not an outcome of a handler: {type(outcome).__name__}")
    return OUTCOME + json.dumps(fields).encode()


def unpack_outcome(frame: bytes) -> Outcome:
    """Parse an OUTCOME frame. Raises BrokenFrame unless `pack_outcome` could have made it.

    An AttemptFailed stands for an exception of the child.
    """
    if frame == OUTCOME:
        return Done()
    match parse_json(frame[1:]):
        case ["done", result, str(ignored)]:
            return to_outcome(Done(result, ignored))
        case ["give back", None, "", None, "", False]:
            return GiveBack()
        case [
            ("retry" | "reject") as kind,
            after_seconds,
            str(reason),
            str() | None as detail,
            str(log_reason),
            bool(has_exception),
        ] if is_delay(after_seconds) and (kind == "retry" or after_seconds is None):
            pass
        case _:
            raise BrokenFrame("its outcome is invalid")
    if kind == "reject":
        outcome = to_outcome(Reject(reason, detail, log_reason))
    else:
        outcome = to_outcome(Retry(after_seconds, reason, detail, log_reason))
    if not has_exception:
        return outcome
    assert isinstance(outcome, Retry | Reject)
    return replace(outcome, exception=AttemptFailed(outcome.reason, outcome.detail))


def pack_save(checkpoint: Any) -> bytes:
    """Make a SAVE frame. Raises MalformedMessage if the checkpoint is not plain data."""
    try:
        return SAVE + json.dumps(checkpoint, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedMessage(f"the checkpoint cannot be written as JSON: {error}") from None


def unpack_save(frame: bytes) -> Any:
    """Parse a SAVE frame. Raises BrokenFrame unless `pack_save` could have made it."""
    return parse_json(frame[1:])


def pack_response(value: Any = None, error: Exception | None = None) -> bytes:
    """Make a RESPONSE frame with a value or an error."""
    problem = None if error is None else [type(error).__name__, str(error)]
    return RESPONSE + json.dumps([value, problem]).encode()


def unpack_response(frame: bytes) -> Any:
    """Parse a RESPONSE frame. Return its value or raise its error."""
    value, problem = json.loads(frame[1:])
    if problem is not None:
        name, text = problem
        raise _ERRORS[name](text) if name in _ERRORS else OSError(f"{name}: {text}")
    return value
