"""Words the tests of the simulated SQS are written in. They fit a boto3 client as well."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import ClientError

from holdfast.testing import ManualClock

Client = Any
Message = dict[str, Any]


def new_queue(client: Client, name: str = "letters", **attributes: Any) -> str:
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in attributes.items()}
    if name.endswith(".fifo"):
        texts["FifoQueue"] = "true"
    return str(client.create_queue(QueueName=name, Attributes=texts)["QueueUrl"])


def arn_of(client: Client, url: str) -> str:
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return str(answer["Attributes"]["QueueArn"])


def with_dead_letters(
    client: Client, max_receives: int = 1, suffix: str = ""
) -> tuple[str, str]:
    """A queue, and the queue of its dead letters."""
    dead = new_queue(client, f"dead{suffix}")
    policy = {"deadLetterTargetArn": arn_of(client, dead), "maxReceiveCount": max_receives}
    return new_queue(client, f"letters{suffix}", RedrivePolicy=policy), dead


def send(client: Client, url: str, body: str = "x", **more: Any) -> Message:
    answer: Message = client.send_message(QueueUrl=url, MessageBody=body, **more)
    return answer


def send_fifo(client: Client, url: str, body: str, group: str = "g", **more: Any) -> Message:
    """With its body for a deduplication id."""
    more.setdefault("MessageDeduplicationId", body)
    return send(client, url, body, MessageGroupId=group, **more)


def receive(client: Client, url: str, limit: int = 10, **more: Any) -> list[Message]:
    answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=limit, **more)
    messages: list[Message] = answer.get("Messages", [])
    return messages


def bodies(client: Client, url: str, **more: Any) -> list[str]:
    return [message["Body"] for message in receive(client, url, **more)]


def handle_of(client: Client, url: str, **more: Any) -> str:
    """Receive one, which must be there."""
    (message,) = receive(client, url, limit=1, **more)
    return str(message["ReceiptHandle"])


def delete(client: Client, url: str, handle: str) -> None:
    client.delete_message(QueueUrl=url, ReceiptHandle=handle)


def extend(client: Client, url: str, handle: str, seconds: int) -> None:
    client.change_message_visibility(
        QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds
    )


def counts(client: Client, url: str) -> tuple[int, int, int]:
    """Ready, in flight, delayed."""
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    kinds = ("", "NotVisible", "Delayed")
    ready, in_flight, delayed = (int(answer[f"ApproximateNumberOfMessages{k}"]) for k in kinds)
    return ready, in_flight, delayed


def code_of(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The code a call is refused with; empty when it succeeds."""
    try:
        call(*args, **kwargs)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def until_waiting(clock: ManualClock, threads: int = 1) -> None:
    """Until this many threads wait on the clock for longer."""
    patience = time.monotonic() + 10
    while clock.waiting < threads:
        assert time.monotonic() < patience, "nobody came to wait"
        time.sleep(0.001)


@contextmanager
def others(clock: ManualClock, threads: int = 1) -> Iterator[ThreadPoolExecutor]:
    """Threads that may wait on the clock. When the test ends, so does their wait."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        clock.advance(60)  # a test that fails must not hang
        pool.shutdown()
