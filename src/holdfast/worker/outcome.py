"""The outcome of one attempt. Handlers return these values and `settle` acts on them.

`to_outcome` and `retry_after_error` map what a handler returned or raised to an outcome.

`reason` and `detail` are stored with the message, where operators can read them. They may
quote the message or an error of the handler, so they are never logged. Logs show
`log_reason` in their place. `exception` is passed on with the event of the outcome. Logs show
its traceback, unless that is turned off.
"""

import json
import os
import re
import traceback
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from pydantic_core import to_json

from holdfast.errors import AttemptFailed, MessageTooLarge
from holdfast.queue.manager import MAX_SECONDS, encode_result

_MAX_REASON = 500
_MAX_CHARACTERS = 16_000
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_LIBRARY = os.path.dirname(os.__file__)
_OWN_PATHS = (
    *(f"{_PACKAGE}/{room}/" for room in ("worker", "process", "queue", "lease", "app")),
    f"{_PACKAGE}/django.py",
    f"{_LIBRARY}/asyncio/",
    f"{_LIBRARY}/threading.py",
    "<string>",  # the first line of a child process
)
_STACK_FRAME = re.compile(r'  File "(.*)", line ')  # as faulthandler writes it
_STACK_HEADING = "(most recent call first):"


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
        # Made anew and not with `replace`, because a user's subclass may take other arguments.
        case Retry():
            return Retry(result.after_seconds, *_clean_texts(result), result.exception)
        case Reject():
            return Reject(*_clean_texts(result), result.exception)
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


def reject_last(retry: Retry, attempts: int) -> Reject:
    """Return the outcome of a message that has no attempt left for a retry."""
    failed = "failed once" if attempts == 1 else f"failed {attempts} times"
    return Reject(
        f"{failed}, last: {retry.reason}",
        retry.detail,
        f"{failed}, last: {retry.log_reason}",
        retry.exception,
    )


def _reject_result(reason: str) -> Reject:
    return Reject(reason, log_reason=reason)


def is_delay(after: Any) -> bool:
    """Return whether `after` is a valid delay. None is valid and means the queue's backoff."""
    if after is None:
        return True
    is_number = isinstance(after, int | float) and not isinstance(after, bool)
    return is_number and -MAX_SECONDS <= after <= MAX_SECONDS  # also false for NaN


def _clean_texts(outcome: Retry | Reject) -> tuple[str, str | None, str]:
    """Return the reason, the detail and the reason for logs, as they are kept."""
    detail = _shorten_text(outcome.detail) or _format_if_raised(outcome.exception)
    return _join_lines(outcome.reason), detail, _join_lines(outcome.log_reason)


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


# -- tracebacks and stacks as text, without the outermost frames, which lead to the user's code


def skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the user's code, or else its last frame."""
    while (
        trace is not None
        and trace.tb_next is not None
        and trace.tb_frame.f_code.co_filename.startswith(_OWN_PATHS)
    ):
        trace = trace.tb_next
    return trace


def format_traceback(error: BaseException) -> str | None:
    """Return the traceback as text, shortened, or None if there is none to show."""
    if isinstance(error, AttemptFailed):
        return None if error.detail is None else shorten(error.detail)
    try:
        return shorten("".join(traceback.format_exception(error)))
    except Exception:  # the exception has a broken __str__
        return None


def shorten(text: str) -> str:
    """Keep both ends of a long text. The start shows the origin and the end the error."""
    text = text.rstrip()
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"


def strip_own_frames(stacks: str) -> str:
    """Return the stacks that faulthandler wrote, without threads that run only Holdfast.

    They are returned unchanged if nothing else would be left.
    """
    threads = map(_strip_thread, stacks.rstrip().split("\n\n"))
    return "\n\n".join(filter(None, threads)) or stacks


def _strip_thread(text: str) -> str:
    lines = text.split("\n")
    while (
        lines and (frame := _STACK_FRAME.match(lines[-1])) and frame[1].startswith(_OWN_PATHS)
    ):
        lines.pop()
    if lines and lines[-1].endswith(_STACK_HEADING):
        lines.pop()
    return "\n".join(lines)
