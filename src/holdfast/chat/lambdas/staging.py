"""Stage 1 in Lambda: `holdfast.lambdas.staging.handler`.

Behind an HTTP API, a REST API or a function URL it is Twilio's webhook:

    200   staged, or nothing to stage; an empty TwiML response, because the reply comes later
    400   not a message that could ever be answered
    403   not signed by Twilio with the configured token; nothing is stored or explained
    405   not a POST
    421   signed by doctor, whose token is right, while the URL that is checked here is not
    503   store, queue or secrets are unavailable; Twilio tries its fallback URL

Each 4xx is a `WebhookRefused` and each 503 a `WebhookFailed`, because Lambda counts neither as
an error. Behind an SQS queue it stages the `Inbound` messages that producers push. It never
raises.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.aws.lambdas.batch import log_safe_error
from holdfast.chat import events as cv
from holdfast.chat.errors import InvalidInbound, PermanentError, TransientError
from holdfast.chat.lambdas.runtime import ChatRuntime
from holdfast.chat.lambdas.webhook import (
    SIGNATURE,
    BadRequest,
    WebhookRequest,
    carries_signature,
    is_empty_form,
    make_response,
    parse_form,
    parse_message,
    parse_request,
)
from holdfast.chat.settings import PROBE_URL
from holdfast.errors import ConfigError, QueueUnavailable, StoreUnavailable
from holdfast.queue.event_log import LoggedEvents

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
    """The entry point of stage 1. It is safe for threads."""

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
        app, signatures = self._chat.app, self._chat.signatures
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


handler = StagingFunction(ChatRuntime())
