"""A Lambda function whose work may take longer than its queue hides a message.

    QUEUE_URL                   the queue that triggers the function, BatchSize 1
    SQS_HEARTBEAT_INTERVAL_MS   how often to extend; a third of the timeout when unset

The queue's visibility timeout must be at least the function's timeout (905 s for 900 s:
Amazon refuses the trigger otherwise), and the role needs `sqs:ChangeMessageVisibility` and
`sqs:GetQueueAttributes` on the queue.
"""

import json
import os
from collections.abc import Callable
from functools import cache
from typing import Any

from holdfast.utils.sqs_heartbeat import (
    SQSHeartbeat,
    interval_from_env,
    stop_all,
    visibility_timeout_of,
)

Work = Callable[[dict[str, Any], SQSHeartbeat], None]


def handler(event: dict[str, Any], context: object) -> None:
    """What Lambda calls. An exception makes SQS deliver the message again."""
    stop_all()  # a frozen invocation may have left one running
    for record in event["Records"]:
        process(record, answer)


def process(record: dict[str, Any], work: Work) -> None:
    """Work on one record while its message is kept hidden."""
    task = parsed(record)
    heartbeat = heartbeat_for(record)
    heartbeat.start()
    try:
        work(task, heartbeat)
        heartbeat.stop()
    except BaseException:
        heartbeat.stop()
        raise
    if error := heartbeat.check_for_errors():
        raise error  # somebody else may have the message: it must not count as done


def process_in_short(record: dict[str, Any], work: Work) -> None:
    """The same: leaving the block stops, checks, and raises."""
    task = parsed(record)
    with heartbeat_for(record) as heartbeat:
        work(task, heartbeat)


def answer(task: dict[str, Any], heartbeat: SQSHeartbeat) -> None:
    """Stands for minutes of somebody else's API, and something that cannot be undone."""
    text = f"Dear {task['customer']}, we are looking into it."
    heartbeat.raise_if_lost()
    print(f"sent to {task['customer']}: {len(text)} characters")


def parsed(record: dict[str, Any]) -> dict[str, Any]:
    """Before there is a heartbeat: what cannot be read needs none."""
    task = json.loads(record["body"])
    if not isinstance(task, dict) or not isinstance(task.get("customer"), str):
        raise ValueError("the message names no customer")
    return task


def heartbeat_for(record: dict[str, Any]) -> SQSHeartbeat:
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
    return visibility_timeout_of(queue_url)  # once per container, not per message


def received_at(attributes: dict[str, str]) -> float | None:
    """SQS tells only when a message was received first: of no use for the later times."""
    if attributes.get("ApproximateReceiveCount") != "1":
        return None
    return int(attributes["ApproximateFirstReceiveTimestamp"]) / 1000
