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

import unicodedata
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request

from holdfast.chat.errors import (
    AuthenticationFailed,
    PermanentError,
    SendStatusUnknown,
    SendUnclear,
    TransientError,
)
from holdfast.chat.outbox import SentPart
from holdfast.chat.ports import ReplyPart, Secret
from holdfast.chat.providers.vendor_http import VendorResponse, build_request, call_vendor
from holdfast.errors import HoldfastError

_ADDRESS = "https://api.twilio.com"
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
    """A sender of WhatsApp messages and SMS. It is safe for threads."""

    secret_fields: tuple[str, ...] = ("account_sid",)  # and one of two kinds of credential
    repeatable = False

    @contextmanager
    def connect(
        self, part: ReplyPart, secret: Secret, *, timeout_seconds: float
    ) -> Iterator[Callable[[], SentPart]]:
        """Build the request. HTTP has no login, so the call itself makes the connection."""
        form = {**_get_origin(part.config), "To": part.key.primary_channel, "Body": part.text}
        try:
            data = urlencode(form).encode()
        except UnicodeEncodeError:
            raise PermanentError("the reply is not valid Unicode") from None
        request = _make_request(part.config, secret, _get_path(secret), data)
        yield partial(_send, request, timeout_seconds)

    def find(
        self, part: ReplyPart, secret: Secret, *, since: float, known: Sequence[str]
    ) -> SentPart | None:
        """Return the oldest message to the customer with this text, whatever its status.

        Any status shows that the message was handed over.
        """
        try:
            recent = list(_list_recent(part, secret, since - _SKEW_SECONDS))
            unknown = [message for message in recent if message["sid"] not in known]
            matching = [item for item in unknown if _is_same_text(item["body"], part.text)]
            if matching:
                oldest = min(matching, key=_get_time)
                return SentPart(str(oldest["sid"]), str(oldest.get("status") or "unknown"))
        except (KeyError, ValueError, TypeError, AttributeError):
            raise SendStatusUnknown("Twilio's list of messages cannot be read") from None
        if any(not message["body"] for message in unknown):
            raise SendStatusUnknown("Twilio has messages whose text it did not keep")
        return None


def _send(request: Request, seconds: float) -> SentPart:
    response = call_vendor("Twilio", request, seconds)
    if not response.is_success:
        raise _translate_refusal(response)
    if not (sid := response.data.get("sid")):
        raise SendUnclear("Twilio's response cannot be read")
    return SentPart(str(sid), str(response.data.get("status") or "unknown"))


def _list_recent(part: ReplyPart, secret: Secret, earliest: float) -> Iterator[dict[str, Any]]:
    """Return the messages to the customer since then, newest first, page by page.

    Twilio's DateSent is not used as a filter: a message that waits in Twilio's queue has none
    yet, and it may be the one that is looked for.
    """
    query = {"To": part.key.primary_channel, "PageSize": str(_PAGE)}
    sender = part.config.get("sender")
    if sender and not _get_service(part.config):
        query["From"] = str(sender)
    path = f"{_get_path(secret)}?{urlencode(query)}"
    while path:
        page = _look_up(_make_request(part.config, secret, path))
        fresh = [message for message in page["messages"] if _get_time(message) >= earliest]
        yield from fresh
        path = str(page.get("next_page_uri") or "") if fresh else ""


def _look_up(request: Request) -> Mapping[str, Any]:
    """Return the response to a call that changes nothing.

    An unclear result is transient there. So is a refusal, because a failed lookup is not a
    reason to give up a reply that may have been sent.
    """
    try:
        response = call_vendor("Twilio", request, _FIND_SECONDS)
        if response.is_success:
            return response.data
        raise _translate_refusal(response)
    except (SendUnclear, PermanentError) as error:
        raise TransientError(str(error)) from None


def _get_time(message: Mapping[str, Any]) -> float:
    return parsedate_to_datetime(message["date_created"]).timestamp()


def _is_same_text(body: str | None, text: str) -> bool:
    stored = _normalize(body or "")
    return stored in (_normalize(text), _normalize(_TRIAL + text))


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _get_service(config: Mapping[str, Any]) -> str:
    return str(config.get("messaging_service_sid") or "")


def _get_origin(config: Mapping[str, Any]) -> dict[str, str]:
    if service := _get_service(config):
        return {"MessagingServiceSid": service}
    if not (sender := config.get("sender")):
        raise PermanentError("channel_config has neither sender nor messaging_service_sid")
    return {"From": str(sender)}


def _get_path(secret: Secret) -> str:
    return f"/2010-04-01/Accounts/{quote(secret.reveal('account_sid'), safe='')}/Messages.json"


def _make_request(
    config: Mapping[str, Any], secret: Secret, path: str, data: bytes | None = None
) -> Request:
    """Return a request that sends the form, or without one a request that reads."""
    if "api_key" in secret and "api_secret" in secret:
        user, password = secret.reveal("api_key"), secret.reveal("api_secret")
    else:
        user, password = secret.reveal("account_sid"), secret.reveal("auth_token")
    if not f"{user}{password}".isascii():
        raise PermanentError(
            "the secret has characters that are not allowed in a Twilio credential"
        )
    credentials = b64encode(f"{user}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}"}
    return build_request(str(config.get("base_url") or _ADDRESS), path, headers, data)


def _translate_refusal(response: VendorResponse) -> HoldfastError:
    """Return the error for a response of a call that sends."""
    status, code = response.status, response.data.get("code")
    text = f"Twilio refused: {status}"
    if isinstance(code, int) and 0 < code < 100_000 and code != status:
        text = f"{text}, error {code}" + (f": {_KNOWN[code]}" if code in _KNOWN else "")
    if status in (401, 403):
        return AuthenticationFailed(text)
    if status == 429:
        return TransientError(text)
    if status >= 500 or status == 408:
        return SendUnclear(f"Twilio failed: {status}")
    return PermanentError(text)
