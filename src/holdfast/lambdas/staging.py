"""Stage 1 in Lambda: `holdfast.lambdas.staging.handler`.

Behind an HTTP API, a REST API or a function URL it is Twilio's webhook:

    200   staged, or nothing to stage; an empty TwiML response, because the reply comes later
    400   not a message that could ever be answered
    403   not signed by Twilio with the configured token; nothing is stored or explained
    405   not a POST
    503   store, queue or secrets are unavailable; Twilio tries its fallback URL

Behind an SQS queue it stages the `Inbound` messages that producers push. It never raises.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.conversations import events as cv
from holdfast.conversations.errors import InvalidInbound
from holdfast.conversations.messages import Inbound
from holdfast.lambdas.chat import ChatRuntime, log
from holdfast.lambdas.event import log_safe_error
from holdfast.lambdas.webhook import (
    SIGNATURE,
    BadRequest,
    WebhookRequest,
    is_empty_form,
    make_response,
    parse_form,
    parse_message,
    parse_request,
)

_UNSIGNED = (
    "the signature is missing or does not match: check that HOLDFAST_CHAT_WEBHOOK_URL is the "
    "URL configured at Twilio"
)


class StagingFunction:
    """The entry point of stage 1. It is safe for threads."""

    def __init__(self, chat: ChatRuntime) -> None:
        self._chat = chat

    def __call__(self, event: Any, context: Any) -> Any:
        if isinstance(event, Mapping) and "Records" in event:
            return self._chat.handle_batch(event, context, Inbound, lambda app: app.stager)
        try:
            return make_response(self._handle_request(event))
        except Exception as error:  # Twilio would get a 502, and Lambda would log the body
            log.error("webhook_failed error=%s", log_safe_error(error))
            return make_response(503)
        finally:
            self._chat.flush_events()

    def _handle_request(self, event: Any) -> int:
        try:
            request = parse_request(event)
            return 405 if request.method != "POST" else self._stage(request)
        except (BadRequest, InvalidInbound) as problem:
            return self._refuse(400, str(problem))

    def _stage(self, request: WebhookRequest) -> int:
        form = parse_form(request)
        app, signatures = self._chat.app, self._chat.signatures
        url = app.settings.webhook_url or request.url
        if not signatures.is_valid(url, form, request.headers.get(SIGNATURE, "")):
            return self._refuse(403, _UNSIGNED)
        if is_empty_form(form):
            return self._refuse(200, "the message is empty: no text, nothing attached")
        app.stager.stage(parse_message(form))
        return 200

    def _refuse(self, status: int, reason: str) -> int:
        self._chat.events.emit(cv.InboundRefused(reason))
        return status


handler = StagingFunction(ChatRuntime())
