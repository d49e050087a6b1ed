"""An AWS server for the bench: ministack in a separate process, which counts calls of SQS.

What the contenders asked for is counted here, on the server's side of the wire, and so are
the times: a drain begins when the first receive that brings something comes in, and ends
when the last delete is answered. So is the CPU of the worker: the server reads the clock of
its process (Linux only) when it answers a delete. No contender is asked what it did.
"""

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch
from urllib.request import Request, urlopen

from bench.session import serving

CONTROL = "/bench"
REGION = "us-east-1"
ACCOUNT = "000000000000"
KEY = "bench"
# In this environment no client calls Amazon.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": KEY,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
    "IOT_MTLS_ENABLED": "0",  # it would listen on all addresses
}

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


@dataclass(slots=True)
class Figures:
    """The calls of the server up to the last delete, with times."""

    calls: dict[str, int] = field(default_factory=dict)  # by the name of the action
    sent: int = 0
    delivered: int = 0
    deleted: int = 0
    refused: int = 0  # deletes with an expired receipt
    renewed: int = 0
    began_at: float = 0.0
    ended_at: float = 0.0
    cpu_seconds: float = 0.0  # of the server, between the two
    # CPU of the worker from the first answer to a delete to the last, for each message that was
    # deleted in between. Without the first delete, because the worker's start is before it.
    worker_seconds_each: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds from the first call to the last delete."""
        return self.ended_at - self.began_at


class Counting:
    """ministack, with a count of every request and response."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._begin()

    def _begin(self) -> None:
        self._calls: Counter[str] = Counter()
        self._figures = Figures()
        self._cpu_at_begin = 0.0
        self._worker = 0
        self._worker_cpu_at_begin = 0.0
        self._deleted_at_begin = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == CONTROL:
            await self._tell(scope, send)
        else:
            await self._count(scope, receive, send)

    async def _count(self, scope: Scope, receive: Receive, send: Send) -> None:
        came_at, action = time.monotonic(), _action(scope)
        self._calls[action] += 1
        answer = bytearray()
        status = 0

        async def pass_on(event: Mapping[str, Any]) -> None:
            nonlocal status
            status = event.get("status", status)
            answer.extend(event.get("body", b""))
            if not event.get("more_body") and event["type"] == "http.response.body":
                self._take_in(action, status, bytes(answer), came_at)
            await send(event)

        await self._app(scope, receive, pass_on)

    def _take_in(self, action: str, status: int, answer: bytes, came_at: float) -> None:
        now = self._figures
        match action:
            case "ReceiveMessage":
                if delivered := answer.count(b'"ReceiptHandle"'):
                    now.delivered += delivered
                    if not now.began_at:
                        now.began_at, self._cpu_at_begin = came_at, time.process_time()
            case "SendMessage" | "SendMessageBatch":
                now.sent += _done(action, status, answer)
            case "ChangeMessageVisibility" | "ChangeMessageVisibilityBatch":
                now.renewed += _done(action, status, answer)
            case "DeleteMessage" | "DeleteMessageBatch":
                self._take_in_delete(_done(action, status, answer), _failed(status, answer))

    def _take_in_delete(self, deleted: int, refused: int) -> None:
        now = self._figures
        now.deleted += deleted
        now.refused += refused
        if deleted:
            now.ended_at = time.monotonic()
            now.cpu_seconds = time.process_time() - self._cpu_at_begin
            now.calls = dict(self._calls)
            self._read_worker_clock()

    def _read_worker_clock(self) -> None:
        if not self._worker:
            return
        now, cpu = self._figures, _cpu_seconds_of(self._worker)
        if not self._deleted_at_begin:
            self._deleted_at_begin, self._worker_cpu_at_begin = now.deleted, cpu
        else:
            deleted = now.deleted - self._deleted_at_begin
            now.worker_seconds_each = (cpu - self._worker_cpu_at_begin) / deleted

    async def _tell(self, scope: Scope, send: Send) -> None:
        body = json.dumps(asdict(self._figures)).encode()
        if scope["method"] == "DELETE":
            self._begin()
        elif scope["method"] == "PUT":
            self._worker = int(scope["query_string"])
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _cpu_seconds_of(process: int) -> float:
    """Return the user and system time of all threads of another process."""
    return time.clock_gettime(~process << 3 | 2)  # clock_getcpuclockid(3), which Python lacks


def _action(scope: Scope) -> str:
    named = (value for name, value in scope["headers"] if name == b"x-amz-target")
    return str(next(named, b"AmazonSQS.unknown").decode().rpartition(".")[2])


def _done(action: str, status: int, answer: bytes) -> int:
    if status != 200:
        return 0
    return len(json.loads(answer)["Successful"]) if action.endswith("Batch") else 1


def _failed(status: int, answer: bytes) -> int:
    if status != 200:
        return 1
    return len(json.loads(answer or b"{}").get("Failed", ()))


def serve(answer: Connection, services: str = "sqs") -> None:
    """Send the address, then serve until killed."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listening.getsockname()[1]
    os.environ.update(GATEWAY_PORT=str(port), SERVICES=services, LOG_LEVEL="ERROR")
    import asyncio

    from hypercorn.asyncio import serve as run
    from hypercorn.config import Config
    from ministack.app import app

    config = Config()
    config.bind = [f"fd://{listening.fileno()}"]
    config.keep_alive_timeout = 600
    config.loglevel = "ERROR"
    answer.send(f"http://127.0.0.1:{port}")
    asyncio.run(run(Counting(app), config))


def serve_dynamodb(answer: Connection) -> None:
    """Serve DynamoDB until killed."""
    os.environ.update(ENVIRONMENT)
    serve(answer, services="dynamodb")


# -- for the processes that call the server


@dataclass(frozen=True, slots=True)
class Place:
    """A queue, as it is passed to the processes that use it."""

    endpoint: str
    queue: str
    visibility_seconds: int

    @property
    def url(self) -> str:
        """Return the queue's URL."""
        return f"{self.endpoint}/{ACCOUNT}/{self.queue}"

    def client(self, **config: Any) -> Any:
        """Return a client of the server."""
        import boto3
        from botocore.config import Config

        return boto3.client("sqs", endpoint_url=self.endpoint, config=Config(**config))

    def read_figures(self, method: str = "GET", process: int | str = "") -> Figures:
        """Return the server's figures. DELETE resets them, PUT names the worker to measure."""
        request = Request(f"{self.endpoint}{CONTROL}?{process}", method=method)
        with urlopen(request, timeout=30) as answer:
            return Figures(**json.load(answer))

    def await_figure(self, name: str, number: int, timeout_seconds: float = 60.0) -> Figures:
        """Wait until the server has counted so many, or the timeout is over."""
        give_up_at = time.monotonic() + timeout_seconds
        while getattr(figures := self.read_figures(), name) < number:
            if time.monotonic() > give_up_at:
                break
            time.sleep(0.02)
        return figures


MakePlace = Callable[[int], AbstractContextManager[Place]]


@contextmanager
def serving_sqs() -> Iterator[MakePlace]:
    """Run a server, and yield a function that makes a queue for a visibility timeout."""
    numbers = count(1)

    @contextmanager
    def make_place(endpoint: str, visibility_seconds: int) -> Iterator[Place]:
        place = Place(endpoint, f"bench-{next(numbers)}", visibility_seconds)
        client = place.client()
        attributes = {"VisibilityTimeout": str(visibility_seconds)}
        client.create_queue(QueueName=place.queue, Attributes=attributes)
        place.read_figures("DELETE")
        yield place
        client.delete_queue(QueueUrl=place.url)
        client.close()

    with patch.dict(os.environ, ENVIRONMENT), serving(serve) as endpoint:
        yield partial(make_place, endpoint)


LEAN, BOTO3 = "lean client (default)", "boto3's client"


def make_client(name: str, endpoint: str, make: Callable[[], Any]) -> Any:
    """Make one of Holdfast's two clients, as Holdfast does. The environment stays changed."""
    choice = {"HOLDFAST_AWS_CLIENT": "boto3" if name == BOTO3 else "auto"}
    os.environ.update(ENVIRONMENT | choice, AWS_ENDPOINT_URL=endpoint)
    client = make()
    is_boto3 = type(client).__module__.startswith("botocore.")
    assert is_boto3 == (name == BOTO3), f"{name}: got a {type(client)}"
    return client
