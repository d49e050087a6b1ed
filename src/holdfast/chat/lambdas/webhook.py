"""Twilio's webhook in Lambda: parse a request, verify it, stage its message, respond.

    function URL, HTTP API ─▶ WebhookRequest ─▶ form ─▶ signed? ─▶ Inbound

    200   staged, or nothing to stage; an empty TwiML response, because the reply comes later
    400   not a message that could ever be answered
    403   not signed by Twilio with the configured token; nothing is stored or explained
    405   not a POST
    421   signed by doctor, whose token is right, while the URL that is checked here is not
    503   store, queue or secrets are unavailable; Twilio tries its fallback URL

Each 4xx is a `WebhookRefused` and each 503 a `WebhookFailed`, because Lambda counts neither as
an error. Error texts, `repr` and logs contain no part of a request, because it holds bodies,
numbers and signatures.
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from holdfast.aws.lambdas.batch import log_safe_error
from holdfast.chat import events as cv
from holdfast.chat.errors import InvalidInbound, PermanentError, TransientError
from holdfast.chat.lambdas import ChatRuntime
from holdfast.chat.messages import Inbound, parse_inbound
from holdfast.chat.ports import Secret, SecretStore
from holdfast.chat.settings import PROBE_URL
from holdfast.errors import ConfigError, HoldfastError, QueueUnavailable, StoreUnavailable
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.event_log import LoggedEvents

HttpResponse = dict[str, Any]

SIGNATURE = "x-twilio-signature"
_FORM = "application/x-www-form-urlencoded"
_EMPTY_TWIML = '<?xml version="1.0" encoding="UTF-8"?><Response></Response>'
_MAX_REQUEST = 1 << 20  # characters; Twilio's requests have a few thousand
_MAX_FIELDS = 500
_MAX_MEDIA = 10  # Twilio's limit
_MIN_REFETCH_SECONDS = 15.0
_MAX_SIGNATURE = 64  # characters; base64 of 20 or 32 bytes


class BadRequest(HoldfastError):
    """The request is refused with this status. `reason` is that of `WebhookRefused`."""

    def __init__(self, problem: str, reason: str = "malformed", status: int = 400) -> None:
        super().__init__(problem)
        self.reason, self.status = reason, status


# -- parsing the request


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """An HTTP request to the webhook."""

    method: str
    url: str = field(repr=False)  # as the caller requested it, with its query
    headers: Mapping[str, str] = field(repr=False)  # by their names in lower case
    body: str = field(repr=False)


def parse_request(event: Any) -> WebhookRequest:
    """Return the request in a Lambda event. Raises BadRequest."""
    event = _as_mapping(event)
    context = _as_mapping(event.get("requestContext"))
    headers = _parse_headers(event)
    method: Any = _as_mapping(context.get("http")).get("method")
    host = context.get("domainName") or headers.get("host", "")
    path, query = event.get("rawPath", "/"), event.get("rawQueryString") or ""
    if not all(isinstance(part, str) for part in (method, host, path, query)):
        raise BadRequest("not an event of a function URL or of an HTTP API (payload 2.0)")
    url = f"https://{host}{path}" + (f"?{query}" if query else "")
    return WebhookRequest(method.upper(), url, headers, _parse_body(event))


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _parse_headers(event: Mapping[str, Any]) -> dict[str, str]:
    headers = _as_mapping(event.get("headers")).items()
    return {str(name).lower(): value for name, value in headers if isinstance(value, str)}


def _parse_body(event: Mapping[str, Any]) -> str:
    body = event.get("body")
    if body is None:
        return ""
    if not isinstance(body, str) or len(body) > _MAX_REQUEST:
        raise BadRequest("the body is too long or not a text")
    try:
        if event.get("isBase64Encoded"):
            return b64decode(body, validate=True).decode()
        body.encode()
    except ValueError:  # errors of base64 and of Unicode are ValueErrors
        raise BadRequest("the body is neither UTF-8 nor base64 of UTF-8") from None
    return body


def carries_signature(event: Any) -> bool:
    """Check whether a request has a signature of Twilio's form, right or wrong."""
    return _is_possible(_parse_headers(_as_mapping(event)).get(SIGNATURE, ""))


def _is_possible(signature: str) -> bool:
    return signature.isascii() and 0 < len(signature) <= _MAX_SIGNATURE


def parse_form(request: WebhookRequest) -> dict[str, str]:
    """Return the fields of the body.

    Raises BadRequest, also for a field that occurs twice, because it is unknown which of the
    two was signed.
    """
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
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError:
        raise BadRequest("the form cannot be read") from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise BadRequest("a field occurs twice")
    return form


# -- the message


def is_empty_form(form: Mapping[str, str]) -> bool:
    """Check for a form without text and attachment, such as a location or a status report."""
    return not form.get("Body", "").strip() and form.get("NumMedia", "0") in ("", "0")


def parse_message(form: Mapping[str, str]) -> Inbound:
    """Return the inbound message. Raises InvalidInbound, which names the wrong field."""
    for name in ("MessageSid", "From", "To"):
        if not form.get(name, "").strip():
            raise InvalidInbound(f"{name} is missing")
    return parse_inbound(
        {
            "message_sid": form["MessageSid"],
            "primary_channel": form["From"],
            "recipient": form["To"],
            "body": form.get("Body", ""),
            "media": _parse_media(form),
        }
    )


def _parse_media(form: Mapping[str, str]) -> tuple[str, ...]:
    count = form.get("NumMedia") or "0"
    if count not in map(str, range(_MAX_MEDIA + 1)):
        raise InvalidInbound(f"NumMedia is not a number up to {_MAX_MEDIA}")
    return tuple(form.get(f"MediaContentType{n}") or "unknown" for n in range(int(count)))


# -- the signature


class SignatureCheck:
    """The check that a request was signed with the configured token. It is safe for threads.

    The token may have been rotated, so it is fetched again when a signature does not match.
    That happens at most every 15 seconds, because otherwise forged requests would overload
    the secret store. While that store is unavailable, the last token stays valid, because
    customers continue to write.
    """

    def __init__(
        self, secrets: SecretStore, reference: str, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._secrets, self._reference, self._clock = secrets, reference, clock
        self._last_secret: Secret | None = None
        self._refetch_at = -inf
        self._lock = Lock()

    def is_valid(self, url: str, form: Mapping[str, str], signature: str) -> bool:
        """Check the signature of a request.

        Raises PermanentError or TransientError if the token cannot be fetched.
        """
        # Any other signature is not Twilio's. Comparing an incomplete character would raise an
        # error, and Twilio would repeat the request. The token need not be fetched, either.
        if not _is_possible(signature):
            return False
        if _is_signed(self._get_secret(), url, form, signature):
            return True
        return self._may_refetch() and _is_signed(self._refetch(), url, form, signature)

    def _may_refetch(self) -> bool:
        now = self._clock.monotonic()
        with self._lock:
            if now < self._refetch_at:
                return False
            self._refetch_at = now + _MIN_REFETCH_SECONDS
        return True

    def _refetch(self) -> Secret:
        self._secrets.forget(self._reference)
        return self._get_secret()

    def _get_secret(self) -> Secret:
        try:
            self._last_secret = self._secrets.get(self._reference)
        except TransientError:
            if self._last_secret is None:
                raise
        return self._last_secret


def _is_signed(secret: Secret, url: str, form: Mapping[str, str], signature: str) -> bool:
    token = secret.reveal("auth_token")
    try:
        expected = [sign_request(known, form, token) for known in _list_port_forms(url)]
    except ValueError:  # an invalid URL, such as one with letters as its port
        return False
    return any(hmac.compare_digest(text, signature) for text in expected)


def sign_request(url: str, form: Mapping[str, str], token: str) -> str:
    """Return the signature of a request, as Twilio's documentation describes it."""
    text = url + "".join(name + form[name] for name in sorted(form))
    return b64encode(hmac.digest(token.encode(), text.encode(), "sha1")).decode()


def _list_port_forms(url: str) -> list[str]:
    """Return the URL with and without its port, because Twilio signs some in the other form."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.netloc.removesuffix(f":{port}")
    return [parts._replace(netloc=name).geturl() for name in (host, f"{host}:{port}")]


# -- the response


def make_response(status: int) -> HttpResponse:
    """Return a response. It does not say why it refuses."""
    accepted = status == 200
    return {
        "statusCode": status,
        "headers": {"Content-Type": "text/xml" if accepted else "text/plain"},
        "body": _EMPTY_TWIML if accepted else "",
        "isBase64Encoded": False,
    }


# -- the function

_UNSIGNED = (
    "the signature is missing or does not match: check that HOLDFAST_CHAT_WEBHOOK_URL is the "
    "URL configured at Twilio"
)
_OTHER_URL = (
    "doctor signed with the right token, so HOLDFAST_CHAT_WEBHOOK_URL is not the URL that it "
    "was told, which should be the one configured at Twilio"
)
_FAILURES: tuple[tuple[type[Exception], str], ...] = (
    (ConfigError, "configuration"),
    (PermanentError, "secret_unavailable"),  # the secret is all that staging asks a provider
    (TransientError, "secret_unavailable"),
    (StoreUnavailable, "store_unavailable"),
    (QueueUnavailable, "queue_unavailable"),
    (Exception, "unexpected"),
)


class StagingFunction:
    """The entry point of stage 1."""

    def __init__(self, chat: ChatRuntime) -> None:
        self._chat = chat

    def __call__(self, event: Any, context: Any) -> Any:
        if isinstance(event, Mapping) and "Records" in event:
            return self._chat.stage_batch(event, context)
        try:
            return make_response(self._handle_request(event))
        except Exception as error:  # Twilio would get a 502, and Lambda would log the body
            return make_response(self._fail(error))
        finally:
            self._chat.flush_events()

    def _handle_request(self, event: Any) -> int:
        try:
            self._stage(parse_request(event))
        except BadRequest as problem:
            return self._refuse(event, problem)
        except InvalidInbound as problem:
            return self._refuse(event, BadRequest(str(problem), "unanswerable"))
        return 200

    def _stage(self, request: WebhookRequest) -> None:
        if request.method != "POST":
            raise BadRequest("not a POST: choose it at Twilio", "method", 405)
        form = parse_form(request)
        app = self._chat.app
        signatures = self._signatures
        url = app.settings.webhook_url or request.url
        signature = request.headers.get(SIGNATURE, "")
        if not signatures.is_valid(url, form, signature):
            if signatures.is_valid(PROBE_URL, form, signature):
                raise BadRequest(_OTHER_URL, "signature", 421)
            raise BadRequest(_UNSIGNED, "signature", 403)
        if is_empty_form(form):
            problem = "the message is empty: no text, nothing attached"
            self._chat.events.emit(cv.InboundRefused(problem))
        else:
            app.stager.stage(parse_message(form))

    @cached_property
    def _signatures(self) -> SignatureCheck:
        app = self._chat.app
        if (reference := app.settings.twilio_secret) is None:
            raise ConfigError(
                "HOLDFAST_CHAT_TWILIO_SECRET is not set: without Twilio's token "
                "its requests cannot be distinguished from forged ones"
            )
        return SignatureCheck(app.providers.secrets, reference, self._chat.clock)

    def _refuse(self, event: Any, problem: BadRequest) -> int:
        reason = problem.reason if carries_signature(event) else "unsigned"
        self._chat.events.emit(cv.WebhookRefused(reason, str(problem)))
        return problem.status

    def _fail(self, error: Exception) -> int:
        reason = next(reason for kind, reason in _FAILURES if isinstance(error, kind))
        event = cv.WebhookFailed(reason, str(log_safe_error(error)))
        try:
            self._chat.events.emit(event)
        except Exception:  # the telemetry cannot be built, so nothing subscribes to events yet
            LoggedEvents().emit(event)
        return 503
