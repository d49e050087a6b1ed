"""The table that translates the results of calls to Twilio.

    2xx                                  done
    400 404 and other 4xx                PermanentError, with Twilio's code
    401 403                              AuthenticationFailed
    429                                  TransientError: nothing was sent
    no connection was made               TransientError: nothing was sent
    5xx 408, lost, timed out, garbled    SendUnclear: it may have been sent

Errors contain only codes, because Twilio's texts repeat the number.
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

# Common codes with an explanation. All others are on Twilio's pages.
_KNOWN = {
    20003: "the credentials are not accepted",
    21211: "the number is not valid",
    21408: "sending to this region is not allowed",
    21610: "the customer has opted out",
    21614: "the number cannot receive texts",
    21617: "the text is too long",
    63007: "the sender is not a WhatsApp sender of this account",
    63016: "outside the 24 hours in which WhatsApp allows free texts",
}


def translate_error(error: Exception) -> HoldfastError:
    """Return the Holdfast error for an error of a call that sends.

    For a call that only reads, use `translate_lookup_error`.
    """
    status, code = _get_status(error), _get_code(error)
    if status is None:
        return _translate_no_response(error)
    text = f"Twilio refused: {status}"
    if code and code != status:
        text = f"{text}, error {code}" + (f": {_KNOWN[code]}" if code in _KNOWN else "")
    if status in (401, 403):
        return AuthenticationFailed(text)
    if status == 429:
        return TransientError(text)
    if status >= 500 or status == 408:
        return SendUnclear(f"Twilio failed: {status}")
    return PermanentError(text)


def translate_lookup_error(error: Exception) -> HoldfastError:
    """Return the Holdfast error for an error of a call that changes nothing.

    An unclear result is transient there. So is a refusal, because a failed lookup is not a
    reason to give up a reply that may have been sent.
    """
    translated = translate_error(error)
    if isinstance(translated, AuthenticationFailed):
        return translated
    return TransientError(str(translated))


def _translate_no_response(error: Exception) -> HoldfastError:
    if isinstance(error, ValueError):  # requests raises this for an invalid address
        return PermanentError("channel_config: base_url is not a valid address")
    if _is_never_connected(error):
        return TransientError(f"Twilio cannot be reached: {type(error).__name__}")
    return SendUnclear(f"Twilio did not respond: {type(error).__name__}")


def _is_never_connected(error: Exception) -> bool:
    """Check whether certainly no byte of the message left this machine.

    Of TLS errors only those about the certificate prove that, because a connection that is
    lost during the response raises a TLS error, too.
    """
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    before = (ConnectTimeoutError, NewConnectionError, ssl.SSLCertVerificationError)
    return any(isinstance(cause, before) for cause in _iterate_causes(error))


def _iterate_causes(error: BaseException, depth: int = 8) -> Iterator[BaseException]:
    """Yield the error and those wrapped in it, as requests and urllib3 wrap them."""
    yield error
    wrapped = [*error.args, getattr(error, "reason", None), error.__cause__]
    for cause in wrapped:
        if isinstance(cause, BaseException) and depth:
            yield from _iterate_causes(cause, depth - 1)


def _get_status(error: Exception) -> int | None:
    status: Any = getattr(error, "status", None)
    if status is None and len(error.args) > 1:  # a page that cannot be fetched
        status = getattr(error.args[1], "status_code", None)
    return status if isinstance(status, int) else None


def _get_code(error: Exception) -> int | None:
    code: Any = getattr(error, "code", None)
    return code if isinstance(code, int) and 0 < code < 100_000 else None
