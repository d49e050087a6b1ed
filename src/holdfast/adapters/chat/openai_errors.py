"""What OpenAI's refusals mean. The one table.

    401 403                          AuthenticationFailed
    conversation_locked              TransientError: an earlier try of ours is still at work
    408 409 429 5xx, no answer       TransientError; insufficient_quota, too: somebody will pay
    no such conversation             ThreadGone
    any other 4xx                    PermanentError, with its code

Codes are matched, never texts, and only codes are told: the vendor's text repeats keys
and bodies.
"""

import re
from typing import Any

from holdfast.conversations.errors import (
    AuthenticationFailed,
    PermanentError,
    ThreadGone,
    TransientError,
)
from holdfast.core.errors import HoldfastError

_CODE = re.compile(r"[a-z][a-z_]{1,59}")

# Not only by status: OpenAI answers 400 while another run is at work in the thread.
_PASSING_CODES = frozenset({"conversation_locked", "rate_limit_exceeded", "server_error"})
_PASSING_STATUS = frozenset({408, 409, 425, 429})


def explained(error: Exception) -> HoldfastError:
    """The error of one call, in our words."""
    status, code = _status(error), _code(error)
    said = f"OpenAI refused: {status} {code}".rstrip()
    if status is None:
        return TransientError(f"OpenAI did not answer: {type(error).__name__}")
    if status in (401, 403):
        return AuthenticationFailed(said)
    if code == "insufficient_quota":
        return TransientError(f"{said}: the account has no credit left")
    if code in _PASSING_CODES or status in _PASSING_STATUS or status >= 500:
        return TransientError(said)
    if _names_no_thread(error, status, code):
        return ThreadGone(said)
    return PermanentError(said)


def failed(code: str | None) -> HoldfastError:
    """A response that was accepted, and then came to nothing."""
    shown = code if code and _CODE.fullmatch(code) else "no code"
    said = f"OpenAI failed to write: {shown}"
    return (
        TransientError(said) if code is None or code in _PASSING_CODES else PermanentError(said)
    )


def unclear_404(error: Exception) -> bool:
    """Something is not there, and the answer does not say what: model or conversation."""
    return _status(error) == 404 and not _code(error) and not _param(error)


def _names_no_thread(error: Exception, status: int, code: str) -> bool:
    """A thread that is deleted; or an id of another time, as `thread_…` of the Assistants."""
    names_thread = _param(error).startswith("conversation")
    if status == 404:
        return names_thread or code == "conversation_not_found"
    return status == 400 and names_thread and code == "invalid_value"


def _status(error: Exception) -> int | None:
    status: Any = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _code(error: Exception) -> str:
    """Empty unless it looks like a code: what a stranger's service calls so is not shown."""
    code: Any = getattr(error, "code", None)
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def _param(error: Exception) -> str:
    param: Any = getattr(error, "param", None)
    return param if isinstance(param, str) else ""
