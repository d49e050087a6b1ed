"""Stage 2 in Lambda: `holdfast.lambdas.messaging.handler`.

    SQS, W seconds after the first message ─▶ one batch answered ─▶ batchItemFailures

`BatchProcessor` handles each trigger of the event, with the rules of `sqs_batch` for records.
The function never raises. It reports only ids of this event's records, each once.
"""

from typing import Any

from holdfast.aws.lambdas.event import BatchResponse
from holdfast.chat.lambdas.setup import ChatRuntime
from holdfast.chat.messages import Trigger
from holdfast.chat.policy import ConversationPolicy

_STORE_SECONDS = 20.0  # for everything except the calls that write and send


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
