"""Stage 2 in Lambda: `holdfast.lambdas.messaging.handler`.

    SQS, W seconds after the first message ─▶ one batch answered ─▶ batchItemFailures

`BatchProcessor` handles each trigger of the event, with the rules of `sqs_batch` for records.
The function never raises. It reports only ids of this event's records, each once.
"""

from typing import Any

from holdfast.conversations.messages import Trigger
from holdfast.conversations.policy import ConversationPolicy
from holdfast.lambdas.chat import ChatRuntime
from holdfast.lambdas.event import BatchResponse

_STORE_SECONDS = 20.0  # for everything except the calls to writer and sender


def max_batch_seconds(policy: ConversationPolicy) -> float:
    """Return the maximum time of one batch; none is started with less time left.

    A batch that is cut off between two steps would continue from there, but a minute of
    waiting would be lost.
    """
    return policy.writer_seconds + policy.sender_seconds + _STORE_SECONDS


class MessagingFunction:
    """The entry point of stage 2. It is safe for threads."""

    def __init__(self, chat: ChatRuntime) -> None:
        self._chat = chat

    def __call__(self, event: Any, context: Any) -> BatchResponse:
        try:
            return self._chat.handle_batch(
                event,
                context,
                Trigger,
                lambda app: app.processor,
                lambda app: max_batch_seconds(app.settings.policy),
            )
        finally:
            self._chat.stop_idle_keeper()


handler = MessagingFunction(ChatRuntime())
