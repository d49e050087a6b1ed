"""What became of a call to Twilio. The one table.

    2xx                                  done
    400 404 and other 4xx                PermanentError, with Twilio's code
    401 403                              AuthenticationFailed
    429                                  TransientError: nothing was sent
    no connection was made               TransientError: nothing was sent
    5xx 408, lost, timed out, garbled    unclear: it may have been sent

Only codes are told: Twilio's texts repeat the number.
"""

import ssl
from collections.abc import Iterator
from typing import Any

from holdfast.conversations.errors import (
    AuthenticationFailed,
    PermanentError,
    SendUnclear,
    TransientError,
)
from holdfast.core.errors import HoldfastError

# Codes a person meets often, in words. All others are on Twilio's pages.
_KNOWN = {
    20003: "the credentials are not accepted",
    21211: "the number is not valid",
    21408: "sending to this region is not allowed",
    21610: "the customer has opted out",
    21614: "the number takes no texts",
    21617: "the text is too long",
    63007: "the sender is no WhatsApp sender of this account",
    63016: "outside the 24 hours in which WhatsApp allows free texts",
}


def explained(error: Exception) -> HoldfastError:
    """The error of one call. SendUnclear also for a call that only asked: see `asking`."""
    status, code = _status(error), _code(error)
    if status is None:
        return _unanswered(error)
    said = f"Twilio refused: {status}"
    if code and code != status:
        said = f"{said}, error {code}" + (f": {_KNOWN[code]}" if code in _KNOWN else "")
    if status in (401, 403):
        return AuthenticationFailed(said)
    if status == 429:
        return TransientError(said)
    if status >= 500 or status == 408:
        return SendUnclear(f"Twilio failed: {status}")
    return PermanentError(said)


def asking(error: Exception) -> HoldfastError:
    """The same for a call that changes nothing: unclear is only passing there. So is a
    refusal: to give up a reply that may be out, because a question failed, helps nobody."""
    found = explained(error)
    return found if isinstance(found, AuthenticationFailed) else TransientError(str(found))


def _unanswered(error: Exception) -> HoldfastError:
    if isinstance(error, ValueError):  # as requests says that an address is none
        return PermanentError("channel_config: base_url is no address")
    if _never_connected(error):
        return TransientError(f"Twilio cannot be reached: {type(error).__name__}")
    return SendUnclear(f"Twilio did not answer: {type(error).__name__}")


def _never_connected(error: Exception) -> bool:
    """Surely not a byte of the message left this machine. A TLS error is no proof of that,
    unless it is about the certificate: a connection lost in mid-answer is one, too."""
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    before = (ConnectTimeoutError, NewConnectionError, ssl.SSLCertVerificationError)
    return any(isinstance(one, before) for one in _within(error))


def _within(error: BaseException, depth: int = 8) -> Iterator[BaseException]:
    """The error, and those that are wrapped in it, in the ways of requests and urllib3."""
    yield error
    wrapped = [*error.args, getattr(error, "reason", None), error.__cause__]
    for one in wrapped:
        if isinstance(one, BaseException) and depth:
            yield from _within(one, depth - 1)


def _status(error: Exception) -> int | None:
    status: Any = getattr(error, "status", None)
    if status is None and len(error.args) > 1:  # a page that cannot be fetched
        status = getattr(error.args[1], "status_code", None)
    return status if isinstance(status, int) else None


def _code(error: Exception) -> int | None:
    code: Any = getattr(error, "code", None)
    return code if isinstance(code, int) and 0 < code < 100_000 else None
