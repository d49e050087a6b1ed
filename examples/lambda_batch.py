"""A Lambda function that handles an SQS queue, with one greeting card per message.

Deploy this file with Holdfast and its extra `aws`. The handler is
`lambda_batch.lambda_handler`.
What the event source mapping and the role need is in docs/how-to/process-a-lambda-batch.md.

Run it here, on a queue that lives in this process:

    python lambda_batch.py
"""

import json
from typing import Any

from pydantic import Field

from holdfast import Context, QueueMessage, Reject, Retry
from holdfast.aws import SQSQueue, sqs_batch

PRINTER_IS_DOWN_FOR = {"Bo"}  # on the first attempt


class Card(QueueMessage):
    """A greeting card to print."""

    to: str = Field(min_length=1)
    text: str = "Happy birthday!"


def print_card(card: Card, ctx: Context) -> Retry | Reject | None:
    """Print a card. A handler returns None if it is done, or else Retry or Reject."""
    if len(card.text) > 40:
        return Reject("the text does not fit on a card")
    if card.to in PRINTER_IS_DOWN_FOR and ctx.attempt == 1:
        return Retry(after_seconds=30)
    ctx.raise_if_lost()  # before an effect that cannot be undone
    print(f"to {card.to}: {card.text}")
    return None


lambda_handler = sqs_batch(print_card, lease_seconds=60, max_attempts=5)


def rehearse() -> dict[str, Any]:
    """Handle one batch of three messages, as Lambda would deliver it."""
    from holdfast.testing import SimulatedSqs

    client = SimulatedSqs().client()
    url = client.create_queue(QueueName="cards")["QueueUrl"]
    queue = SQSQueue(url, Card, client=client)
    queue.push_many([Card(to="Ada"), Card(to="Bo"), Card(to="Cy", text="x" * 50)])
    received = client.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"]
    )
    records = [
        {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message["Attributes"],
        }
        for message in received["Messages"]
    ]
    return sqs_batch(print_card, queue=queue)({"Records": records}, None)


if __name__ == "__main__":
    print(json.dumps(rehearse(), indent=2))
