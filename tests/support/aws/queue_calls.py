"""Calls through Holdfast's adapters, whose errors say what a client's error means."""

from typing import Any

from holdfast.exports.model import TaskToken
from holdfast.exports.step_functions import StepFunctionsCallbacks
from holdfast.queues.sqs.address import parse_address
from holdfast.queues.sqs.queue_client import QueueClient
from support.aws.calls import QUEUE, TOKEN


def call_queue(client: Any) -> str:
    """Ask for a queue's URL and return it. Raises ConfigError and QueueUnavailable."""
    queue = QueueClient(parse_address(QUEUE), 2.0, client)
    return str(queue.call_service("get_queue_url", QueueName="letters")["QueueUrl"])


def send_success(client: Any) -> None:
    """Report a task's success. Raises CallbackRefused, CallbackUnclear and TokenClosed."""
    StepFunctionsCallbacks(client).send_task_success(TaskToken(TOKEN), {"status": "COMPLETED"})
