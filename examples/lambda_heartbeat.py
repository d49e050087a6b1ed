"""A Lambda function whose work may take longer than its queue's visibility timeout.

    QUEUE_URL                   the queue that triggers the function, BatchSize 1
    SQS_HEARTBEAT_INTERVAL_MS   the interval of extensions; by default a third of the timeout

The queue's visibility timeout must be at least the function's timeout (905 s for 900 s:
Amazon refuses the trigger otherwise), and the role needs `sqs:ChangeMessageVisibility` and
`sqs:GetQueueAttributes` on the queue.
"""

import json
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from holdfast.aws import (
    SQSHeartbeat,
    interval_from_env,
    stop_all,
    visibility_timeout_of,
)

Work = Callable[[dict[str, Any], SQSHeartbeat], None]


def handler(event: dict[str, Any], context: object) -> None:
    """Handle an event of Lambda. If it raises, SQS delivers the message again."""
    stop_all()  # a frozen invocation may have left a heartbeat running
    for record in event["Records"]:
        process(record, answer)


def process(record: dict[str, Any], work: Work) -> None:
    """Work on one record while a heartbeat keeps its message hidden."""
    task = parse_task(record)
    heartbeat = make_heartbeat(record)
    heartbeat.start()
    try:
        work(task, heartbeat)
        heartbeat.stop()
    except BaseException:
        heartbeat.stop()
        raise
    if error := heartbeat.check_for_errors():
        raise error  # another worker may have the message, so it must not count as done


def process_in_short(record: dict[str, Any], work: Work) -> None:
    """Do the same with a block, whose end stops the heartbeat, checks it, and raises."""
    task = parse_task(record)
    with make_heartbeat(record) as heartbeat:
        work(task, heartbeat)


def answer(task: dict[str, Any], heartbeat: SQSHeartbeat) -> None:
    """Stand for minutes in a foreign API, and for something that cannot be undone."""
    text = f"Dear {task['customer']}, we are looking into it."
    heartbeat.raise_if_lost()
    print(f"sent to {task['customer']}: {len(text)} characters")


def parse_task(record: dict[str, Any]) -> dict[str, Any]:
    """Return the task, before a heartbeat is started. Raises ValueError."""
    task = json.loads(record["body"])
    if not isinstance(task, dict) or not isinstance(task.get("customer"), str):
        raise ValueError("the message names no customer")
    return task


def make_heartbeat(record: dict[str, Any]) -> SQSHeartbeat:
    """Return the heartbeat of a record's message."""
    queue_url = os.environ["QUEUE_URL"]
    timeout = visibility_timeout(queue_url)
    return SQSHeartbeat(
        queue_url,
        record["receiptHandle"],
        interval_from_env() or timeout / 3,
        timeout,
        received_at=received_at(record["attributes"]),
    )


@cache
def visibility_timeout(queue_url: str) -> int:
    """Return the queue's visibility timeout, read once per container."""
    return visibility_timeout_of(queue_url)


def received_at(attributes: dict[str, str]) -> float | None:
    """Return when the message was received, if this is its first delivery.

    SQS reports only the time of the first delivery.
    """
    if attributes.get("ApproximateReceiveCount") != "1":
        return None
    return int(attributes["ApproximateFirstReceiveTimestamp"]) / 1000
