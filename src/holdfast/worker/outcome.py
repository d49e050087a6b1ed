"""The outcome of one attempt. Handlers return these values and `settle` acts on them.

`to_outcome` and `retry_after_error` map what a handler returned or raised to an outcome.

`reason` and `detail` are stored with the message, where operators can read them. They may
quote the message or an error of the handler, so they are never logged. Logs show
`log_reason` in their place. `exception` is passed on with the event of the outcome. Logs show
its traceback, unless that is turned off.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from holdfast.errors import AttemptFailed, MessageTooLarge
from holdfast.queue.manager import MAX_SECONDS, encode_result
from holdfast.worker.tracebacks import format_traceback, shorten, skip_own_frames

_MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class Done:
    """The work is finished. Returning None means the same.

    `result` is plain JSON data that is kept with the message, if the queue can keep results.
    `ignored` says why the value that a task returned is not kept.
    """

    result: Any = None
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `after_seconds`, or after the queue's backoff if that is None."""

    after_seconds: float | None = None
    reason: str = "the handler asked for a retry"
    detail: str | None = None  # a traceback or stack dump for operators
    log_reason: str = "the handler asked for a retry"
    exception: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reject:
    """Dead-letter the message with this reason and never try again."""

    reason: str
    detail: str | None = None
    log_reason: str = "the handler rejected it"
    exception: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The work is unfinished through no fault of its own, because the worker stops.

    Another worker can claim the message at once. The attempt is not charged, if the queue
    can refund it.
    """


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The lease is lost, so its new holder settles the message and this worker must not."""

    reason: str


DONE = Done()
GIVE_BACK = GiveBack()

Outcome = Done | Retry | Reject | GiveBack | Abandoned


def to_outcome(result: Any) -> Outcome:
    """Convert a handler's return value to an outcome.

    An invalid value becomes Reject, because the next attempt would return it again.
    """
    match result:
        case None | Done(None, ""):
            return DONE
        case Done(None):
            return Done(ignored=_join_lines(result.ignored))
        case Done(value):
            return done_with_result(value)
        case GiveBack():
            return GiveBack()
        case Retry(after_seconds=after) if not is_delay(after):
            return _reject_result(
                "the handler returned Retry() with after_seconds that is not a number, or more "
                "than ten years"
            )
        case Retry(after, reason, detail, log_reason, exception):
            return Retry(
                after,
                _join_lines(reason),
                _shorten_text(detail) or _format_if_raised(exception),
                _join_lines(log_reason),
                exception,
            )
        case Reject(reason, detail, log_reason, exception):
            return Reject(
                _join_lines(reason),
                _shorten_text(detail) or _format_if_raised(exception),
                _join_lines(log_reason),
                exception,
            )
        case _:
            # Name only the type, because the value may be private data.
            return _reject_result(
                f"the handler returned a value of type {type(result).__name__}; it may "
                "return nothing, Done(), Retry(…), Reject(…) or GiveBack()"
            )


def done_with_result(value: Any) -> Done:
    """Return Done with a value as plain JSON data, or with the reason why it is not kept.

    Work that is done stays done, so a value that cannot be kept is no error.
    """
    try:
        result = json.loads(to_json(value, inf_nan_mode="strings"))
        encode_result(result)  # as the queue does, which would refuse what this refuses
    except MessageTooLarge as error:
        return Done(ignored=str(error))
    except Exception as error:  # a value's own serializer may raise anything
        kind, problem = type(value).__name__, type(error).__name__
        return Done(ignored=f"a value of type {kind} cannot be written as JSON ({problem})")
    return Done(result)


def retry_after_error(error: BaseException) -> Retry:
    """Return the outcome of a handler that raised `error`. Its reason in logs is the type.

    The traceback of `error` is changed, so that it begins in the user's code.
    """
    text = _to_text(error)
    name = type(error).__name__
    error.__traceback__ = skip_own_frames(error.__traceback__)
    reason = _join_lines(f"{name}: {text}" if text else name)
    return Retry(None, reason, _format_if_raised(error), name, error)


def retry_logged(reason: str, detail: str | None = None) -> Retry:
    """Return the outcome of an attempt that Holdfast ended, with a reason that logs may show.

    The reason is Holdfast's own text, so it quotes neither the message nor the handler.
    """
    return Retry(None, reason, detail, reason, AttemptFailed(reason, detail))


def _reject_result(reason: str) -> Reject:
    return Reject(reason, log_reason=reason)


def is_delay(after: Any) -> bool:
    """Return whether `after` is a valid delay. None is valid and means the queue's backoff."""
    if after is None:
        return True
    is_number = isinstance(after, int | float) and not isinstance(after, bool)
    return is_number and -MAX_SECONDS <= after <= MAX_SECONDS  # also false for NaN


def _to_text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # a broken __str__ must not replace the reason
        return "(its text cannot be shown)"


def _format_if_raised(error: BaseException | None) -> str | None:
    return None if error is None else format_traceback(error)


def _join_lines(text: Any) -> str:
    line = " ".join(_to_text(text).split())
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 1] + "…"


def _shorten_text(detail: Any) -> str | None:
    return None if detail is None else shorten(_to_text(detail))
