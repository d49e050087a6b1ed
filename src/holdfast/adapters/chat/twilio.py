"""Replies sent through Twilio: WhatsApp and SMS.

channel_config: sender, or messaging_service_sid; base_url for a service that speaks as
Twilio does. Secret: account_sid and auth_token, or account_sid, api_key and api_secret.

Twilio takes no key that would make a second send harmless, so a send nobody answered is
looked for among the messages it has.
"""

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from holdfast.adapters.chat import twilio_errors
from holdfast.adapters.chat.vendor_logs import silence_vendor_logs
from holdfast.conversations.errors import PermanentError, SendStatusUnknown, SendUnclear
from holdfast.conversations.outbox import SentPart
from holdfast.conversations.ports import ReplyPart
from holdfast.conversations.secret import Secret
from holdfast.core.clock import utc

_FIND_SECONDS = 15.0
_SKEW_SECONDS = 60.0  # between our clock and Twilio's, whose times are whole seconds
_PAGE = 200

# Prefixed to every text of an account that does not pay yet.
_TRIAL = "Sent from your Twilio trial account - "


class TwilioSender:
    """Safe for threads. Every call has a connection of its own: one from a pool may be
    closed already, and a send over it would be in doubt for nothing."""

    secret_fields: tuple[str, ...] = ("account_sid",)  # and one of two kinds of credential
    repeatable = False

    def __init__(self) -> None:
        try:
            # All that a call imports, which takes a second: while it runs, a kill would
            # leave a reply in doubt that was surely not sent.
            import twilio.base.exceptions
            import twilio.http.http_client
            import twilio.rest.api.v2010.account.message  # noqa: F401
        except ImportError:
            text = "Twilio needs its library: pip install 'holdfast[twilio]'"
            raise PermanentError(text) from None
        silence_vendor_logs(
            "urllib3.connectionpool", "twilio"
        )  # they tell numbers, as parts of addresses

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        """HTTP has no login, and Twilio's library connects with the request itself."""
        order = {**_origin(part.config), "to": part.key.primary_channel, "body": part.text}
        _check_unicode(order.values())
        with _client(part.config, secret, timeout_seconds) as client:
            yield partial(_sent, client.messages, order)

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """The oldest message to the customer with this text, whatever became of it since:
        it was handed over."""
        earliest = utc(since - _SKEW_SECONDS)
        with _client(part.config, secret, _FIND_SECONDS) as client:
            recent = list(_recent(client, part, earliest))
        unknown = [one for one in recent if one.sid not in known]
        found = [one for one in unknown if _same(one.body, part.text)]
        if found:
            oldest = min(found, key=lambda one: one.date_created)
            return SentPart(str(oldest.sid), str(oldest.status or "unknown"))
        if any(not one.body for one in unknown):
            raise SendStatusUnknown("Twilio has messages of which it did not keep the text")
        return None


def _sent(messages: Any, order: Mapping[str, str]) -> SentPart:
    message = _created(messages, order)
    if not message.sid:
        raise SendUnclear("Twilio's answer cannot be read")
    return SentPart(str(message.sid), str(message.status or "unknown"))


def _created(messages: Any, order: Mapping[str, str]) -> Any:
    from twilio.base.exceptions import TwilioException

    try:
        return messages.create(**order)
    except (TwilioException, OSError) as error:  # all of requests' errors are OSErrors
        raise twilio_errors.explained(error) from None
    except (ValueError, TypeError, AttributeError):
        raise SendUnclear("Twilio's answer cannot be read") from None


def _recent(client: Any, part: ReplyPart, earliest: datetime) -> Iterator[Any]:
    """Messages to the customer since then, newest first, page by page.

    Not filtered by Twilio's DateSent: a message that waits in its queue has none yet, and
    is just what is looked for.
    """
    from twilio.base.exceptions import TwilioException

    sender = part.config.get("sender")
    only = {"from_": sender} if sender and not _service(part.config) else {}
    try:
        page = client.messages.page(to=part.key.primary_channel, page_size=_PAGE, **only)
        while page is not None:
            fresh = [one for one in page if one.date_created >= earliest]
            yield from fresh
            page = page.next_page() if fresh else None
    except (TwilioException, OSError) as error:
        raise twilio_errors.asking(error) from None
    except (ValueError, TypeError, AttributeError):
        raise SendStatusUnknown("Twilio's list of messages cannot be read") from None


def _same(body: str | None, text: str) -> bool:
    stored = _normal(body or "")
    return stored in (_normal(text), _normal(_TRIAL + text))


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _service(config: Mapping[str, Any]) -> str:
    return str(config.get("messaging_service_sid") or "")


def _origin(config: Mapping[str, Any]) -> dict[str, str]:
    if service := _service(config):
        return {"messaging_service_sid": service}
    if not (sender := config.get("sender")):
        raise PermanentError("channel_config has neither sender nor messaging_service_sid")
    return {"from_": str(sender)}


def _check_unicode(texts: Any) -> None:
    """Here, as its failure inside the call would look like a doubt about sending."""
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
        user, word = secret.reveal("api_key"), secret.reveal("api_secret")
    else:
        user, word = account, secret.reveal("auth_token")
    if not f"{account}{user}{word}".isascii():
        raise PermanentError("the secret has characters that no Twilio credential has")
    wire = _Wire(_address(config), seconds)
    try:
        yield Client(user, word, account, http_client=wire)
    finally:
        wire.close()


def _address(config: Mapping[str, Any]) -> str:
    """Empty: Twilio's own, of the region and edge that its library finds."""
    address = str(config.get("base_url") or "").rstrip("/")
    if address and not address.startswith(("https://", "http://")):
        raise PermanentError("channel_config: base_url must begin with https:// or http://")
    return address


class _Wire:
    """The HTTP client of Twilio's library, impatient, and led to where we want."""

    is_async = False

    def __init__(self, address: str, seconds: float) -> None:
        from twilio.http.http_client import TwilioHttpClient

        self._http = TwilioHttpClient(timeout=seconds, max_retries=0)
        self._address = address

    def request(self, method: str, uri: str, **order: Any) -> Any:
        if self._address:
            parts = urlsplit(uri)
            uri = f"{self._address}{parts.path}" + (f"?{parts.query}" if parts.query else "")
        return self._http.request(method, uri, **order)

    def close(self) -> None:
        self._http.session.close()
