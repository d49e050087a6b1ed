"""Short calls for the tests of the simulated SQS. They work with a boto3 client as well."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError

from holdfast.testing import ManualClock
from support.waiting import wait_until

Client = Any
Message = dict[str, Any]


def create_queue(client: Client, name: str = "letters", **attributes: Any) -> str:
    """Create a queue and return its URL."""
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in attributes.items()}
    if name.endswith(".fifo"):
        texts["FifoQueue"] = "true"
    return str(client.create_queue(QueueName=name, Attributes=texts)["QueueUrl"])


def get_arn(client: Client, url: str) -> str:
    """Return the queue's ARN."""
    response = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(response["Attributes"]["QueueArn"])


def create_queue_with_dead_letters(
    client: Client, max_receives: int = 1, suffix: str = ""
) -> tuple[str, str]:
    """Create a queue with a queue for its dead letters, and return both URLs."""
    url, dead = create_queue(client, f"letters{suffix}"), create_queue(client, f"dead{suffix}")
    set_redrive_policy(client, url, dead, max_receives)
    return url, dead


def set_redrive_policy(client: Client, url: str, dead: str, max_receives: int) -> None:
    """Let messages of the first queue go to the second after so many receives."""
    policy = {"deadLetterTargetArn": get_arn(client, dead), "maxReceiveCount": max_receives}
    client.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})


def send(client: Client, url: str, body: str = "x", **more: Any) -> Message:
    """Send a message and return the response."""
    response: Message = client.send_message(QueueUrl=url, MessageBody=body, **more)
    return response


def send_fifo(client: Client, url: str, body: str, group: str = "g", **more: Any) -> Message:
    """Send a message whose body is its deduplication id, and return the response."""
    more.setdefault("MessageDeduplicationId", body)
    return send(client, url, body, MessageGroupId=group, **more)


def receive(client: Client, url: str, limit: int = 10, **more: Any) -> list[Message]:
    """Receive up to `limit` messages."""
    response = client.receive_message(QueueUrl=url, MaxNumberOfMessages=limit, **more)
    messages: list[Message] = response.get("Messages", [])
    return messages


def receive_bodies(client: Client, url: str, **more: Any) -> list[str]:
    """Receive messages and return their bodies."""
    return [message["Body"] for message in receive(client, url, **more)]


def receive_handle(client: Client, url: str, **more: Any) -> str:
    """Receive the one message there must be, and return its receipt handle."""
    (message,) = receive(client, url, limit=1, **more)
    return str(message["ReceiptHandle"])


def delete(client: Client, url: str, handle: str) -> None:
    """Delete a message."""
    client.delete_message(QueueUrl=url, ReceiptHandle=handle)


def extend(client: Client, url: str, handle: str, seconds: int) -> None:
    """Set a message's visibility timeout."""
    client.change_message_visibility(
        QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds
    )


def count_messages(client: Client, url: str) -> tuple[int, int, int]:
    """Count the messages that are ready, in flight and delayed."""
    response = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    attributes, kinds = response["Attributes"], ("", "NotVisible", "Delayed")
    ready, in_flight, delayed = (
        int(attributes[f"ApproximateNumberOfMessages{kind}"]) for kind in kinds
    )
    return ready, in_flight, delayed


def get_error_code(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the error code of a refused call, or "" if it succeeds."""
    try:
        call(*args, **kwargs)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def wait_for_waiting_threads(clock: ManualClock, threads: int = 1) -> None:
    """Wait until this many threads wait on the clock."""
    wait_until(lambda: clock.waiting >= threads)


@contextmanager
def open_threads(clock: ManualClock, threads: int = 1) -> Iterator[ThreadPoolExecutor]:
    """Open a pool of threads that may wait on the clock; end their waits with the test."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        clock.advance(60)  # so that a test that fails does not hang
        pool.shutdown()
