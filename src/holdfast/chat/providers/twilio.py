"""Replies sent through Twilio: WhatsApp and SMS.

channel_config: sender, or messaging_service_sid; base_url for a service with the same API.
Secret: account_sid and auth_token, or account_sid, api_key and api_secret.

Twilio accepts no idempotency key, so a send that got no response is looked up among the
messages that Twilio has. The results of calls are translated by this table. Errors contain
only codes, because Twilio's texts repeat the number.

    2xx                                  done
    400 404 and other 4xx                PermanentError, with Twilio's code
    401 403                              AuthenticationFailed
    429                                  TransientError: nothing was sent
    no connection was made               TransientError: nothing was sent
    5xx 408, lost, timed out, garbled    SendUnclear: it may have been sent
"""

import ssl
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    TransientError,
)
from holdfast.chat.outbox import SentPart
from holdfast.chat.ports import ReplyPart, Secret
from holdfast.chat.providers import silence_vendor_logs
from holdfast.errors import HoldfastError
from holdfast.lease.clock import to_utc
from holdfast.version import format_install_command

_FIND_SECONDS = 15.0
_SKEW_SECONDS = 60.0  # between this clock and Twilio's, whose times are full seconds
_PAGE = 200

# Twilio prefixes this to every text of a trial account.
_TRIAL = "Sent from your Twilio trial account - "

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


class TwilioSender:
    """A sender of WhatsApp messages and SMS. It is safe for threads.

    Each call has its own connection. A pooled one may be closed already, and then it would be
    unknown whether the message was sent, although nothing was.
    """

    secret_fields: tuple[str, ...] = ("account_sid",)  # and one of two kinds of credential
    repeatable = False

    def __init__(self) -> None:
        try:
            # Import everything that a call needs, which takes a second. If a process were
            # killed during an import in the call, it would be unknown whether the reply was
            # sent, although it certainly was not.
            import twilio.base.exceptions
            import twilio.http.http_client
            import twilio.rest.api.v2010.account.message  # noqa: F401
        except ImportError:
            text = f"Twilio needs its library: {format_install_command('twilio')}"
            raise PermanentError(text) from None
        # They log phone numbers as parts of URLs.
        silence_vendor_logs("urllib3.connectionpool", "twilio")

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        """Check the part and make a client.

        HTTP has no login, and Twilio's library connects with the request itself.
        """
        request = {
            **_get_origin(part.config),
            "to": part.key.primary_channel,
            "body": part.text,
        }
        _check_unicode(request.values())
        with _client(part.config, secret, timeout_seconds) as client:
            yield partial(_send, client.messages, request)

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """Return the oldest message to the customer with this text, whatever its status.

        Any status shows that the message was handed over.
        """
        earliest = to_utc(since - _SKEW_SECONDS)
        with _client(part.config, secret, _FIND_SECONDS) as client:
            recent = list(_list_recent(client, part, earliest))
        unknown = [message for message in recent if message.sid not in known]
        matching = [item for item in unknown if _is_same_text(item.body, part.text)]
        if matching:
            oldest = min(matching, key=lambda message: message.date_created)
            return SentPart(str(oldest.sid), str(oldest.status or "unknown"))
        if any(not message.body for message in unknown):
            raise SendStatusUnknown("Twilio has messages whose text it did not keep")
        return None


def _send(messages: Any, request: Mapping[str, str]) -> SentPart:
    message = _create(messages, request)
    if not message.sid:
        raise SendUnclear("Twilio's response cannot be read")
    return SentPart(str(message.sid), str(message.status or "unknown"))


def _create(messages: Any, request: Mapping[str, str]) -> Any:
    from twilio.base.exceptions import TwilioException

    try:
        return messages.create(**request)
    except (TwilioException, OSError) as error:  # all of requests' errors are OSErrors
        raise _translate_error(error) from None
    except (ValueError, TypeError, AttributeError):
        raise SendUnclear("Twilio's response cannot be read") from None


def _list_recent(client: Any, part: ReplyPart, earliest: datetime) -> Iterator[Any]:
    """Return the messages to the customer since then, newest first, page by page.

    Twilio's DateSent is not used as a filter: a message that waits in Twilio's queue has none
    yet, and it may be the one that is looked for.
    """
    from twilio.base.exceptions import TwilioException

    sender = part.config.get("sender")
    filters = {"from_": sender} if sender and not _get_service(part.config) else {}
    try:
        page = client.messages.page(to=part.key.primary_channel, page_size=_PAGE, **filters)
        while page is not None:
            fresh = [message for message in page if message.date_created >= earliest]
            yield from fresh
            page = page.next_page() if fresh else None
    except (TwilioException, OSError) as error:
        raise _translate_lookup_error(error) from None
    except (ValueError, TypeError, AttributeError):
        raise SendStatusUnknown("Twilio's list of messages cannot be read") from None


def _is_same_text(body: str | None, text: str) -> bool:
    stored = _normalize(body or "")
    return stored in (_normalize(text), _normalize(_TRIAL + text))


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _get_service(config: Mapping[str, Any]) -> str:
    return str(config.get("messaging_service_sid") or "")


def _get_origin(config: Mapping[str, Any]) -> dict[str, str]:
    if service := _get_service(config):
        return {"messaging_service_sid": service}
    if not (sender := config.get("sender")):
        raise PermanentError("channel_config has neither sender nor messaging_service_sid")
    return {"from_": str(sender)}


def _check_unicode(texts: Any) -> None:
    """Check the texts before the call, where a failure would look like an unclear send."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise PermanentError("the reply is not valid Unicode") from None


# -- the connection


@contextmanager
def _client(config: Mapping[str, Any], secret: Secret, seconds: float) -> Iterator[Any]:
    from twilio.rest import Client

    account = secret.reveal("account_sid")
    if "api_key" in secret and "api_secret" in secret:
        user, password = secret.reveal("api_key"), secret.reveal("api_secret")
    else:
        user, password = account, secret.reveal("auth_token")
    if not f"{account}{user}{password}".isascii():
        raise PermanentError(
            "the secret has characters that are not allowed in a Twilio credential"
        )
    http = _HttpClient(_get_address(config), seconds)
    try:
        yield Client(user, password, account, http_client=http)
    finally:
        http.close()


def _get_address(config: Mapping[str, Any]) -> str:
    """Return the configured address, or '' for the one that Twilio's library chooses."""
    address = str(config.get("base_url") or "").rstrip("/")
    if address and not address.startswith(("https://", "http://")):
        raise PermanentError("channel_config: base_url must begin with https:// or http://")
    return address


class _HttpClient:
    """Twilio's HTTP client with a timeout, no retries and the configured address."""

    is_async = False

    def __init__(self, address: str, seconds: float) -> None:
        from twilio.http.http_client import TwilioHttpClient

        self._http = TwilioHttpClient(timeout=seconds, max_retries=0)
        self._address = address

    def request(self, method: str, uri: str, **options: Any) -> Any:
        """Send the request to the configured address."""
        if self._address:
            parts = urlsplit(uri)
            uri = f"{self._address}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        return self._http.request(method, uri, **options)

    def close(self) -> None:
        """Close the connection."""
        self._http.session.close()


# -- errors


def _translate_error(error: Exception) -> HoldfastError:
    """Return the Holdfast error for an error of a call that sends.

    For a call that only reads, use `_translate_lookup_error`.
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


def _translate_lookup_error(error: Exception) -> HoldfastError:
    """Return the Holdfast error for an error of a call that changes nothing.

    An unclear result is transient there. So is a refusal, because a failed lookup is not a
    reason to give up a reply that may have been sent.
    """
    translated = _translate_error(error)
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
