"""A Lambda event source on the simulated SQS, which receives, invokes and deletes."""

from collections.abc import Iterable
from typing import Any

from holdfast import QueueMessage
from holdfast.lease.clock import Clock
from holdfast.queues.sqs import SQSQueue
from holdfast.testing import ManualClock
from holdfast.testing.sqs import SimulatedSqs
from support.sqs.calls import count_messages, create_queue, delete, receive, send

POLLER_SECONDS = 30


class Task(QueueMessage):
    n: int
    schema_version: int = 1


class LambdaContext:
    """A Lambda context whose remaining time follows the clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._end = clock, clock.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return int((self._end - self._clock.monotonic()) * 1000)


class EventSource:
    """One queue and its event source mapping."""

    def __init__(self, clock: ManualClock, *, fifo: bool = False, **settings: Any) -> None:
        self.clock = clock
        self.sqs = SimulatedSqs(clock)
        self.client = self.sqs.client()
        self.fifo = fifo
        name = "tasks.fifo" if fifo else "tasks"
        self.url = create_queue(self.client, name, VisibilityTimeout=POLLER_SECONDS)
        self.queue = SQSQueue(self.url, Task, client=self.client, clock=clock, **settings)

    def send(self, *numbers: int, group: str | None = None, body: str | None = None) -> None:
        for n in numbers:
            more = {"MessageGroupId": group} if group else {}
            if self.fifo:
                more["MessageDeduplicationId"] = f"{group}-{n}"
            task = Task(id=f"{group or 'task'}-{n}", n=n)
            send(self.client, self.url, body or task.model_dump_json(), **more)

    def receive(self) -> dict[str, Any]:
        """Return an event with all visible messages."""
        return receive_event(self.client, self.url)

    def delete_the_done(self, event: dict[str, Any], answer: dict[str, Any]) -> None:
        """Delete the messages that the response does not name, like Lambda."""
        failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        delete_records(self.client, self.url, event, keep=failed)

    def visible(self) -> int:
        return count_messages(self.client, self.url)[0]

    def hidden(self) -> int:
        return count_messages(self.client, self.url)[1]

    def dead(self) -> list[str]:
        return sorted(str(view.reason) for view in self.queue.dead_letters())


def receive_event(client: Any, url: str) -> dict[str, Any]:
    """Return an event with all visible messages of a queue, as Lambda builds it."""
    records: dict[str, dict[str, Any]] = {}
    account, name = url.split("/")[-2:]
    all_attributes = {"AttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    while messages := receive(client, url, **all_attributes):
        fresh = {message["MessageId"]: _make_record(message) for message in messages}
        if fresh.keys() <= records.keys():  # this queue does not hide what was received
            break
        records |= fresh
    arn = f"arn:aws:sqs:us-east-1:{account}:{name}"
    return {"Records": [record | {"eventSourceARN": arn} for record in records.values()]}


def _make_record(message: dict[str, Any]) -> dict[str, Any]:
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
        "awsRegion": "us-east-1",
    }


def delete_records(
    client: Any, url: str, event: dict[str, Any], keep: Iterable[str] = ()
) -> None:
    """Delete the messages of an event, except those with the ids in `keep`."""
    handles = {record["messageId"]: record["receiptHandle"] for record in event["Records"]}
    for message_id in handles.keys() - set(keep):
        delete(client, url, handles[message_id])


def numbers(event: dict[str, Any], answer: dict[str, Any]) -> list[int]:
    """Return the task numbers of a response's failures, in order."""
    by_id = {r["messageId"]: Task.model_validate_json(r["body"]).n for r in event["Records"]}
    return [by_id[failure["itemIdentifier"]] for failure in answer["batchItemFailures"]]
