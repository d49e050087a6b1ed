"""The table that translates OpenAI's errors.

    401 403                          AuthenticationFailed
    conversation_locked              TransientError: an earlier attempt is still running
    408 409 429 5xx, no response     TransientError
    insufficient_quota               TransientError, because the account can be topped up
    no such conversation             ThreadGone
    any other 4xx                    PermanentError, with its code

Codes are matched, never texts. Errors and logs contain only codes, because the vendor's texts
repeat keys and bodies.
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

# The status is not enough: OpenAI returns 400 while another run uses the thread.
_TRANSIENT_CODES = frozenset({"conversation_locked", "rate_limit_exceeded", "server_error"})
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})


def translate_error(error: Exception) -> HoldfastError:
    """Return the Holdfast error for an error of one call."""
    status, code = _get_status(error), _get_code(error)
    text = f"OpenAI refused: {status} {code}".rstrip()
    if status is None:
        return TransientError(f"OpenAI did not respond: {type(error).__name__}")
    if status in (401, 403):
        return AuthenticationFailed(text)
    if code == "insufficient_quota":
        return TransientError(f"{text}: the account has no credit left")
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUS or status >= 500:
        return TransientError(text)
    if _is_thread_missing(error, status, code):
        return ThreadGone(text)
    return PermanentError(text)


def translate_failure(code: str | None) -> HoldfastError:
    """Return the error for a response that OpenAI accepted and then failed to write."""
    shown_code = code if code and _CODE.fullmatch(code) else "no code"
    text = f"OpenAI failed to write: {shown_code}"
    return (
        TransientError(text)
        if code is None or code in _TRANSIENT_CODES
        else PermanentError(text)
    )


def is_unclear_404(error: Exception) -> bool:
    """Check whether a 404 does not say what is missing, the model or the conversation."""
    return _get_status(error) == 404 and not _get_code(error) and not _get_param(error)


def _is_thread_missing(error: Exception, status: int, code: str) -> bool:
    """Check for a deleted thread, or for a `thread_…` id of the former Assistants API."""
    names_thread = _get_param(error).startswith("conversation")
    if status == 404:
        return names_thread or code == "conversation_not_found"
    return status == 400 and names_thread and code == "invalid_value"


def _get_status(error: Exception) -> int | None:
    status: Any = getattr(error, "status_code", None)
    return status if isinstance(status, int) else None


def _get_code(error: Exception) -> str:
    """Return the error's code, or '' if it does not look like one.

    Another service may put any text there, and that must not be shown.
    """
    code: Any = getattr(error, "code", None)
    return code if isinstance(code, str) and _CODE.fullmatch(code) else ""


def _get_param(error: Exception) -> str:
    param: Any = getattr(error, "param", None)
    return param if isinstance(param, str) else ""
