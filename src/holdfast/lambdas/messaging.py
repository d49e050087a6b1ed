"""Stage 2 in Lambda: `holdfast.lambdas.messaging.handler`.

    SQS, W seconds after the first message ─▶ one batch answered ─▶ batchItemFailures

`BatchProcessor` handles each trigger of the event, with the rules of `sqs_batch` for records.
The function never raises. It reports only ids of this event's records, each once.
"""

from holdfast.chat.lambdas import ChatRuntime

handler = ChatRuntime().answer_batch
