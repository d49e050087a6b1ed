"""A Lambda event source on the simulated SQS, which receives, invokes and deletes."""

import time
from collections.abc import Callable
from typing import Any

from holdfast import QueueMessage
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock
from holdfast.testing.sqs import SimulatedSqs

POLLER_SECONDS = 30


class Task(QueueMessage):
    n: int
    schema_version: int = 1


class LambdaContext:
    """A Lambda context whose remaining time follows the test's clock."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock, self._end = clock, clock.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return int((self._end - self._clock.monotonic()) * 1000)


class EventSource:
    """One queue and its event source mapping."""

    def __init__(self, clock: ManualClock, *, fifo: bool = False, **settings: Any) -> None:
        self.clock = clock
        self.sqs = SimulatedSqs(clock)
        self.client = self.sqs.client()
        name, attributes = "tasks", {"VisibilityTimeout": str(POLLER_SECONDS)}
        if fifo:
            name, attributes = "tasks.fifo", {**attributes, "FifoQueue": "true"}
        self.fifo = fifo
        self.url = self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        self.queue = SQSQueue(self.url, Task, client=self.client, clock=clock, **settings)

    def send(self, *numbers: int, group: str | None = None, body: str | None = None) -> None:
        for n in numbers:
            fifo = {"MessageDeduplicationId": f"{group}-{n}"} if self.fifo else {}
            self.client.send_message(
                QueueUrl=self.url,
                MessageBody=body or Task(id=f"{group or 'task'}-{n}", n=n).model_dump_json(),
                **fifo,
                **({"MessageGroupId": group} if group else {}),
            )

    def receive(self) -> dict[str, Any]:
        """Return an event with all visible messages, as Lambda builds it."""
        records: list[dict[str, Any]] = []
        while messages := self._receive():
            records += [self._record(message) for message in messages]
        return {"Records": records}

    def _receive(self) -> list[dict[str, Any]]:
        answer = self.client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=10,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return answer.get("Messages", [])

    def _record(self, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message["Attributes"],
            "messageAttributes": {
                name: {"stringValue": value["StringValue"], "dataType": value["DataType"]}
                for name, value in message.get("MessageAttributes", {}).items()
            },
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:us-east-1:000000000000:{self.queue.name[4:]}",
            "awsRegion": "us-east-1",
        }

    def delete_the_done(self, event: dict[str, Any], answer: dict[str, Any]) -> None:
        """Delete the messages that the response does not name, like Lambda."""
        failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        handles = {r["messageId"]: r["receiptHandle"] for r in event["Records"]}
        for message_id in handles.keys() - failed:
            self.client.delete_message(QueueUrl=self.url, ReceiptHandle=handles[message_id])

    def visible(self) -> int:
        return self._count("ApproximateNumberOfMessages")

    def hidden(self) -> int:
        return self._count("ApproximateNumberOfMessagesNotVisible")

    def _count(self, name: str) -> int:
        answer = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=[name])
        return int(answer["Attributes"][name])

    def dead(self) -> list[str]:
        return sorted(str(view.reason) for view in self.queue.dead_letters())


def numbers(event: dict[str, Any], answer: dict[str, Any]) -> list[int]:
    """Return the task numbers of a response's failures, in order."""
    by_id = {r["messageId"]: Task.model_validate_json(r["body"]).n for r in event["Records"]}
    return [by_id[failure["itemIdentifier"]] for failure in answer["batchItemFailures"]]


def eventually(holds: Callable[[], bool]) -> None:
    """Wait in real time for another thread."""
    give_up_at = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < give_up_at, "it did not come to pass"
        time.sleep(0.001)
