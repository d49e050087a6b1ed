"""Stage 2 in Lambda: `holdfast.lambdas.messaging.handler`.

    SQS, W seconds after the first message ─▶ one batch answered ─▶ batchItemFailures

Each trigger of the event goes through `BatchProcessor`; what `sqs_batch` says of records
holds here. It never raises. What it reports are ids of this event's records, each once.
"""

from typing import TYPE_CHECKING, Any

from holdfast.conversations.messages import Trigger
from holdfast.conversations.policy import ConversationPolicy
from holdfast.lambdas.chat import ChatRuntime
from holdfast.lambdas.event import BatchResponse
from holdfast.lambdas.sources import EventSources

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp

_STORE_SECONDS = 20.0  # for all that is neither the writer nor the sender


def batch_seconds(terms: ConversationPolicy) -> float:
    """The longest one batch may take; none is begun with less left of the invocation. Cut
    off between two steps it would go on from there, but a minute's waiting would be lost."""
    return terms.writer_seconds + terms.sender_seconds + _STORE_SECONDS


class MessagingFunction:
    """The entry point. Safe for threads."""

    def __init__(self, chat: ChatRuntime) -> None:
        self._chat = chat
        self._sources = EventSources(chat, _processor, Trigger, _work_seconds)

    def __call__(self, event: Any, context: Any) -> BatchResponse:
        try:
            return self._sources.handle(event, context)
        finally:
            self._chat.rest()


def _processor(app: "ChatApp") -> Any:
    return app.processor


def _work_seconds(app: "ChatApp") -> float:
    return batch_seconds(app.settings.terms)


handler = MessagingFunction(ChatRuntime())
