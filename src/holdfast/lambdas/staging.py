"""Stage 1 in Lambda: `holdfast.lambdas.staging.handler`.

Behind an HTTP API, a REST API or a function URL it is Twilio's webhook:

    200   staged, or nothing to stage: an empty TwiML response, the reply comes later
    400   no message that could ever be answered
    403   not signed by Twilio with our token; nothing is stored, nothing is told
    405   not a POST
    503   store, queue or secrets are away: Twilio tries its fallback URL

Behind an SQS queue it stages what producers push there, as `Inbound`. It never raises.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.conversations import events as cv
from holdfast.conversations.errors import InvalidInbound
from holdfast.conversations.messages import Inbound
from holdfast.lambdas.chat import ChatRuntime, log, told
from holdfast.lambdas.sources import EventSources
from holdfast.lambdas.webhook import (
    SIGNATURE,
    BadRequest,
    WebhookRequest,
    answer,
    form_of,
    message_of,
    request_of,
    says_nothing,
)

_UNSIGNED = (
    "the signature is missing or does not fit: is HOLDFAST_CHAT_WEBHOOK_URL the URL that "
    "Twilio was told?"
)


class StagingFunction:
    """The entry point. Safe for threads."""

    def __init__(self, chat: ChatRuntime) -> None:
        self._chat = chat
        self._sources = EventSources(chat, lambda app: app.stager, Inbound)

    def __call__(self, event: Any, context: Any) -> Any:
        if isinstance(event, Mapping) and "Records" in event:
            return self._sources.handle(event, context)
        try:
            return answer(self._status(event))
        except Exception as error:  # an exception is a 502 to Twilio, and tells the body
            log.error("webhook_failed error=%s", told(error))
            return answer(503)

    def _status(self, event: Any) -> int:
        try:
            request = request_of(event)
            return 405 if request.method != "POST" else self._stage(request)
        except (BadRequest, InvalidInbound) as problem:
            return self._refuse(400, str(problem))

    def _stage(self, request: WebhookRequest) -> int:
        form = form_of(request)
        app, signatures = self._chat.app, self._chat.signatures
        url = app.settings.webhook_url or request.url
        if not signatures.fit(url, form, request.headers.get(SIGNATURE, "")):
            return self._refuse(403, _UNSIGNED)
        if says_nothing(form):
            return self._refuse(200, "the message is empty: no text, nothing attached")
        app.stager.stage(message_of(form))
        return 200

    def _refuse(self, status: int, reason: str) -> int:
        self._chat.events.emit(cv.InboundRefused(reason))
        return status


handler = StagingFunction(ChatRuntime())
