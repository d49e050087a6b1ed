"""Make clients of each kind as Holdfast makes them, and call its adapters with them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aws_responses import QUEUE, TOKEN

from holdfast.aws import clients
from holdfast.aws.json_client.client import JsonClient
from holdfast.exports.model import TaskToken
from holdfast.exports.step_functions import StepFunctionsCallbacks
from holdfast.queues.sqs.address import parse_address
from holdfast.queues.sqs.queue_client import QueueClient
from support.http_server import LoopbackServer


class ClientMaker:
    """Makes clients of one kind, as Holdfast makes them.

    They call the server, unless a call names another address.
    """

    def __init__(self, kind: str, server: LoopbackServer) -> None:
        self.kind = kind
        self.server = server
        self._made: list[Any] = []

    def make_fail_fast(
        self, service: str = "sqs", *, url: str = "", seconds: float = 40.0
    ) -> Any:
        """Make a client that tries once. Its timeout is an eighth of `seconds`, at most 5 s."""
        with self._choose_kind():
            return self._keep(
                clients.make_fail_fast_client(
                    service, seconds, endpoint_url=url or self.server.url("")
                )
            )

    def make_retrying(self, service: str = "sqs", *, url: str = "") -> Any:
        """Make a client that tries again."""
        with self._choose_kind():
            return self._keep(
                clients.make_retrying_client(service, endpoint_url=url or self.server.url(""))
            )

    def close(self) -> None:
        """Close the clients."""
        for client in self._made:
            client.close()

    @contextmanager
    def _choose_kind(self) -> Iterator[None]:
        os.environ[clients.CLIENT_VARIABLE] = "boto3" if self.kind == "boto3" else "auto"
        try:
            yield
        finally:
            del os.environ[clients.CLIENT_VARIABLE]

    def _keep(self, client: Any) -> Any:
        assert isinstance(client, JsonClient) == (self.kind == "lean")
        self._made.append(client)
        return client


# -- calls through Holdfast's adapters, whose errors say what a client's error means


def call_queue(client: Any) -> str:
    """Ask for a queue's URL and return it. Raises ConfigError and QueueUnavailable."""
    queue = QueueClient(parse_address(QUEUE), 2.0, client)
    return str(queue.call_service("get_queue_url", QueueName="letters")["QueueUrl"])


def send_success(client: Any) -> None:
    """Report a task's success. Raises CallbackRefused, CallbackUnclear and TokenClosed."""
    StepFunctionsCallbacks(client).send_task_success(TaskToken(TOKEN), {"status": "COMPLETED"})
