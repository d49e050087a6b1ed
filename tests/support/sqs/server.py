"""A real server for SQS and Lambda (ministack), on a free port of this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

_numbers = count(1)

# The server listens on a socket that it opens itself, so no port is guessed, and only on
# loopback.
_SERVER = """
import asyncio, os, socket, sys

listening = socket.create_server(("127.0.0.1", 0))
port = listening.getsockname()[1]
os.environ.update(GATEWAY_PORT=str(port), SERVICES="sqs,lambda,iam", LOG_LEVEL="ERROR")
from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack.app import app

config = Config()
config.bind = [f"fd://{listening.fileno()}"]
config.loglevel = "ERROR"

async def main():
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    # The parent process holds the other end. When the parent dies, the server ends too.
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await serve(app, config, shutdown_trigger=ended.wait)

print(f"http://127.0.0.1:{port}", flush=True)
asyncio.run(main())
"""


class Server:
    """A server process that runs until `close`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the server did not start"

    def close(self) -> None:
        """Kill the server."""
        self._process.kill()
        self._process.communicate()


class Sqs:
    """The queues of a server, and the environment that a process needs to reach them."""

    def __init__(self, url: str) -> None:
        self.env = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        self.client = self.new_client("sqs")

    def new_client(self, service: str) -> Any:
        """Make a boto3 client for this server."""
        import boto3

        return boto3.Session().client(
            service,
            endpoint_url=self.env["AWS_ENDPOINT_URL"],
            region_name=self.env["AWS_DEFAULT_REGION"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def new_queue(self, *, redrive_after: int | None = None, **attributes: str) -> str:
        """Create a queue and return its name; `redrive_after` adds a dead-letter queue."""
        name = f"queue-{os.getpid()}-{next(_numbers)}"
        if redrive_after is not None:
            arn = self.arn(self._create(f"{name}-dlq", {}))
            policy = {"deadLetterTargetArn": arn, "maxReceiveCount": redrive_after}
            attributes["RedrivePolicy"] = json.dumps(policy)
        self._create(name, attributes)
        return name

    def _create(self, name: str, attributes: Mapping[str, str]) -> str:
        self.client.create_queue(QueueName=name, Attributes=dict(attributes))
        return name

    def url(self, name: str) -> str:
        """Return the queue's URL."""
        return str(self.client.get_queue_url(QueueName=name)["QueueUrl"])

    def attributes(self, name: str) -> dict[str, str]:
        """Return the queue's attributes."""
        response = self.client.get_queue_attributes(
            QueueUrl=self.url(name), AttributeNames=["All"]
        )
        attributes: dict[str, str] = response["Attributes"]
        return attributes

    def arn(self, name: str) -> str:
        """Return the queue's ARN."""
        return self.attributes(name)["QueueArn"]

    def waiting(self, name: str) -> int:
        """Return the number of messages that wait."""
        return int(self.attributes(name)["ApproximateNumberOfMessages"])

    def held(self, name: str) -> int:
        """Return the number of messages in flight."""
        return int(self.attributes(name)["ApproximateNumberOfMessagesNotVisible"])

    def take(self, name: str) -> list[dict[str, Any]]:
        """Receive up to ten messages, as another consumer would."""
        response = self.client.receive_message(
            QueueUrl=self.url(name), MaxNumberOfMessages=10, VisibilityTimeout=30
        )
        return list(response.get("Messages", []))
