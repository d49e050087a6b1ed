"""Queues of a real server for SQS, and the environment that a process needs to reach them."""

import os
from itertools import count
from typing import TYPE_CHECKING, Any

from support.sqs.calls import count_messages, create_queue, receive, set_redrive_policy

if TYPE_CHECKING:
    from support.ministack_server import Ministack

_numbers = count(1)


class Sqs:
    """The queues of a server, by their names."""

    def __init__(self, server: "Ministack") -> None:
        self.client = server.client("sqs")
        self.env = {
            **server.env,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def new_queue(self, *, redrive_after: int | None = None, **attributes: str) -> str:
        """Create a queue and return its name; `redrive_after` adds a dead-letter queue."""
        name = f"queue-{next(_numbers)}"
        url = create_queue(self.client, name, **attributes)
        if redrive_after is not None:
            dead = create_queue(self.client, f"{name}-dlq")
            set_redrive_policy(self.client, url, dead, redrive_after)
        return name

    def url(self, name: str) -> str:
        """Return the queue's URL."""
        return str(self.client.get_queue_url(QueueName=name)["QueueUrl"])

    def waiting(self, name: str) -> int:
        """Return the number of messages that wait."""
        return count_messages(self.client, self.url(name))[0]

    def held(self, name: str) -> int:
        """Return the number of messages in flight."""
        return count_messages(self.client, self.url(name))[1]

    def take(self, name: str) -> list[dict[str, Any]]:
        """Receive up to ten messages, as another consumer would."""
        return receive(self.client, self.url(name), VisibilityTimeout=30)
