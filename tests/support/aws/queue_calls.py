"""Calls through Holdfast's adapters, whose errors say what a client's error means."""

from typing import Any

from holdfast.adapters.aws.sqs.address import parse_address
from holdfast.adapters.aws.sqs.queue_client import QueueClient
from holdfast.adapters.aws.stepfunctions import StepFunctionsCallbacks
from holdfast.jobs.model import TaskToken
from support.aws.calls import QUEUE, TOKEN


def call_queue(client: Any) -> str:
    """Ask for a queue's URL and return it. Raises ConfigError and QueueUnavailable."""
    queue = QueueClient(parse_address(QUEUE), 2.0, client)
    return str(queue.call_service("get_queue_url", QueueName="letters")["QueueUrl"])


def send_success(client: Any) -> None:
    """Report a task's success. Raises CallbackRefused, CallbackUnclear and TokenClosed."""
    StepFunctionsCallbacks(client).send_task_success(TaskToken(TOKEN), {"status": "COMPLETED"})
