"""HTTP events of Lambda, as Twilio's webhook causes them: read, checked, answered.

    REST API (v1), HTTP API (v2), function URL ─▶ WebhookRequest ─▶ form ─▶ signed? ─▶ Inbound

Nothing of a request is in an error's text, a `repr` or a log: bodies, numbers and
signatures stay here.
"""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from holdfast.conversations.errors import InvalidInbound, TransientError
from holdfast.conversations.messages import Inbound, inbound_of
from holdfast.conversations.ports import SecretStore
from holdfast.conversations.secret import Secret
from holdfast.core.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import ConfigError, HoldfastError

Answer = dict[str, Any]

SIGNATURE = "x-twilio-signature"
_FORM = "application/x-www-form-urlencoded"
_EMPTY_TWIML = '<?xml version="1.0" encoding="UTF-8"?><Response></Response>'
_MAX_REQUEST = 1 << 20  # characters; Twilio's are a few thousand
_MOST_FIELDS = 500
_MOST_MEDIA = 10  # Twilio's limit
_AGAIN_SECONDS = 15.0
_MAX_SIGNATURE = 64  # characters; base64 of 20 or 32 bytes


class BadRequest(HoldfastError):
    """No request that Twilio would make."""


# -- reading


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    method: str
    url: str = field(repr=False)  # as the caller had it, query and all
    headers: Mapping[str, str] = field(repr=False)  # by their names in lower case
    body: str = field(repr=False)


def request_of(event: Any) -> WebhookRequest:
    """Raises BadRequest."""
    event = _mapping(event)
    context = _mapping(event.get("requestContext"))
    method = _mapping(context.get("http")).get("method") or event.get("httpMethod")
    if not isinstance(method, str):
        raise BadRequest("not an HTTP event")
    headers = _headers(event)
    return WebhookRequest(method.upper(), _url(event, context, headers), headers, _body(event))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _headers(event: Mapping[str, Any]) -> dict[str, str]:
    """A REST API tells them twice; one that came several times is a list there."""
    once = _mapping(event.get("headers")).items()
    several = _mapping(event.get("multiValueHeaders")).items()
    texts = {str(name).lower(): v for name, v in once if isinstance(v, str)}
    lists = {str(name).lower(): v for name, v in several if isinstance(v, list)}
    return texts | {
        n: ",".join(one for one in v if isinstance(one, str)) for n, v in lists.items()
    }


def _url(event: Mapping[str, Any], context: Mapping[str, Any], headers: dict[str, str]) -> str:
    host = context.get("domainName") or headers.get("host", "")
    if "rawPath" in event:
        path, query = event["rawPath"], event.get("rawQueryString")
    else:  # the context's path has the stage in it, as the URL had
        path, query = context.get("path") or event.get("path") or "/", _query(event)
    if not all(isinstance(one, str) for one in (host, path, query or "")):
        raise BadRequest("the URL is no text")
    return f"https://{host}{path}" + (f"?{query}" if query else "")


def _query(event: Mapping[str, Any]) -> str:
    """A REST API has decoded it: written again as most would write it. Raises BadRequest:
    half a character has no bytes that could be written."""
    several = event.get("multiValueQueryStringParameters")
    found = _mapping(several or event.get("queryStringParameters"))
    try:
        return urlencode(found, doseq=True, quote_via=quote)
    except (ValueError, TypeError, RecursionError):
        raise BadRequest("the query cannot be read") from None


def _body(event: Mapping[str, Any]) -> str:
    body = event.get("body")
    if body is None:
        return ""
    if not isinstance(body, str) or len(body) > _MAX_REQUEST:
        raise BadRequest("the body is too long, or no text")
    try:
        if event.get("isBase64Encoded"):
            return b64decode(body, validate=True).decode()
        body.encode()
    except ValueError:  # base64's and Unicode's errors are such
        raise BadRequest("the body is neither UTF-8 nor base64 of it") from None
    return body


def form_of(request: WebhookRequest) -> dict[str, str]:
    """The fields of the body. Raises BadRequest: also when one comes twice, for it is not
    known which of the two was signed."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise BadRequest("the body is not form-encoded")
    if not request.body:
        return {}
    try:
        pairs = parse_qsl(
            request.body,
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise BadRequest("the form cannot be read") from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise BadRequest("a field comes twice")
    return form


# -- understanding


def says_nothing(form: Mapping[str, str]) -> bool:
    """Neither text nor attachment: a location, a reaction, the report of a delivery."""
    return not form.get("Body", "").strip() and form.get("NumMedia", "0") in ("", "0")


def message_of(form: Mapping[str, str]) -> Inbound:
    """Raises InvalidInbound: what is wrong, by field."""
    for name in ("MessageSid", "From", "To"):
        if not form.get(name, "").strip():
            raise InvalidInbound(f"{name} is missing")
    return inbound_of(
        {
            "message_sid": form["MessageSid"],
            "primary_channel": form["From"],
            "recipient": form["To"],
            "body": form.get("Body", ""),
            "media": _media(form),
        }
    )


def _media(form: Mapping[str, str]) -> tuple[str, ...]:
    count = form.get("NumMedia") or "0"
    if count not in map(str, range(_MOST_MEDIA + 1)):
        raise InvalidInbound(f"NumMedia is no number up to {_MOST_MEDIA}")
    return tuple(form.get(f"MediaContentType{n}") or "unknown" for n in range(int(count)))


# -- believing


class SignatureCheck:
    """Tells requests that were signed with our token from others. Safe for threads.

    The token may have been rotated: when a signature does not fit, it is fetched anew, at
    most every 15 seconds. Forged requests would have the store of secrets hammered
    otherwise. While that store is away, the last token stays good: customers write on.
    """

    def __init__(
        self, secrets: SecretStore, reference: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._secrets, self._reference, self._clock = secrets, reference, clock
        self._known: Secret | None = None
        self._again_at = -inf
        self._deciding = Lock()

    def fit(self, url: str, form: Mapping[str, str], signature: str) -> bool:
        """Raises Permanent or TransientError when there is no token, ConfigError without Twilio's
        library."""
        # Anything else is not Twilio's. Compared, half a character would be an error of
        # ours, and Twilio would come again; nor is it worth asking for the token.
        if not signature.isascii() or not 0 < len(signature) <= _MAX_SIGNATURE:
            return False
        if _signed(self._secret(), url, form, signature):
            return True
        return self._may_ask_again() and _signed(self._fetched(), url, form, signature)

    def _may_ask_again(self) -> bool:
        now = self._clock.monotonic()
        with self._deciding:
            if now < self._again_at:
                return False
            self._again_at = now + _AGAIN_SECONDS
        return True

    def _fetched(self) -> Secret:
        self._secrets.forget(self._reference)
        return self._secret()

    def _secret(self) -> Secret:
        try:
            self._known = self._secrets.get(self._reference)
        except TransientError:
            if self._known is None:
                raise
        return self._known


def _signed(secret: Secret, url: str, form: Mapping[str, str], signature: str) -> bool:
    try:
        from twilio.request_validator import RequestValidator
    except ImportError:
        raise ConfigError("webhooks need Twilio's library: holdfast[twilio]") from None
    token = secret.reveal("auth_token")
    try:
        return bool(RequestValidator(token).validate(url, dict(form), signature))
    except ValueError:  # no URL at all, such as one with letters for a port
        return False


# -- answering


def answer(status: int) -> Answer:
    """For every kind of HTTP event. Who is refused is not told why."""
    good = status == 200
    return {
        "statusCode": status,
        "headers": {"Content-Type": "text/xml" if good else "text/plain"},
        "body": _EMPTY_TWIML if good else "",
        "isBase64Encoded": False,
    }
