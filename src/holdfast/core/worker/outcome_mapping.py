"""What one call of a handler amounts to: its return value or exception as an outcome."""

import traceback
from typing import Any

from holdfast.core.queue.manager import MAX_SECONDS
from holdfast.core.worker.outcome import Done, GiveBack, Outcome, Reject, Retry

DONE = Done()

_MAX_REASON = 500
_MAX_DETAIL = 16_000


def outcome_of(result: Any) -> Outcome:
    """The outcome a handler returned. Nonsense is rejected: the next try would repeat it."""
    match result:
        case None | Done():
            return DONE
        case GiveBack():
            return GiveBack()
        case Retry(after_seconds=after) if not is_delay(after):
            return _nonsense(
                "the handler returned Retry() with after_seconds that is no number, or more "
                "than ten years"
            )
        case Retry(after, reason, detail, told):
            return Retry(after, _one_line(reason), _cut(detail), _one_line(told))
        case Reject(reason, detail, told):
            return Reject(_one_line(reason), _cut(detail), _one_line(told))
        case _:
            # Its type only: the value may be somebody's data.
            return _nonsense(
                f"the handler returned a value of type {type(result).__name__}; it may "
                "return nothing, Done(), Retry(…), Reject(…) or GiveBack()"
            )


def retry_after_error(error: BaseException) -> Retry:
    """The outcome of a handler that raised."""
    text = _text(error)
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return Retry(None, _one_line(reason), _trace(error), log_reason=type(error).__name__)


def retry_logged(reason: str, detail: str | None = None) -> Retry:
    """The outcome of work that we ended: the words are our own, so logs may have them."""
    return Retry(None, reason, detail, log_reason=reason)


def _nonsense(reason: str) -> Reject:
    return Reject(reason, log_reason=reason)


def is_delay(after: Any) -> bool:
    """Whether a message may wait that long; None: by the queue's backoff."""
    if after is None:
        return True
    is_number = isinstance(after, int | float) and not isinstance(after, bool)
    return is_number and -MAX_SECONDS <= after <= MAX_SECONDS  # false for NaN, too


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # a broken __str__ must not cost the message its reason
        return "(its text cannot be shown)"


def _trace(error: BaseException) -> str | None:
    # The first frame is ours, and tells the reader nothing.
    start = error.__traceback__ and (error.__traceback__.tb_next or error.__traceback__)
    try:
        return _cut("".join(traceback.format_exception(type(error), error, start)))
    except Exception:
        return None


def _one_line(text: Any) -> str:
    line = " ".join(_text(text).split())
    return line if len(line) <= _MAX_REASON else line[: _MAX_REASON - 1] + "…"


def _cut(detail: Any) -> str | None:
    """Both ends of a long text: the start says where it began, the end what it was."""
    if detail is None:
        return None
    text = _text(detail)
    if len(text) <= _MAX_DETAIL:
        return text
    half = _MAX_DETAIL // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"
