"""The server of the SQS benchmarks, with a fresh queue for every measurement."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from typing import Any
from urllib.request import Request, urlopen

from tools import listeners

from bench.sqs_server import CONTROL, Figures, serve

REGION = "us-east-1"
ACCOUNT = "000000000000"
KEY = "bench"
CONCURRENCY = 10
_ENVIRONMENT = {
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

    def figures(self) -> Figures:
        """Return the server's figures."""
        return _control(f"{self.endpoint}{CONTROL}", "GET")

    def watch(self, process: int) -> None:
        """Let the server measure the CPU time of a worker."""
        _control(f"{self.endpoint}{CONTROL}?{process}", "PUT")

    def await_sent(self, count: int) -> None:
        """Wait for producers that send in the background."""
        while self.figures().sent < count:
            sleep(0.01)


class Ground:
    """A source of queues of one server."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._count = 0

    @contextmanager
    def place(self, visibility_seconds: int) -> Iterator[Place]:
        """Yield a new queue, and reset the counters."""
        self._count += 1
        place = Place(self._endpoint, f"bench-{self._count}", visibility_seconds)
        client = place.client()
        attributes = {"VisibilityTimeout": str(visibility_seconds)}
        client.create_queue(QueueName=place.queue, Attributes=attributes)
        _control(f"{self._endpoint}{CONTROL}", "DELETE")
        try:
            yield place
        finally:
            client.delete_queue(QueueUrl=place.url)
            client.close()


@contextmanager
def serving() -> Iterator[Ground]:
    """Run a local server, in an environment in which no client calls Amazon."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    try:
        with _process(serve, sender):
            assert receiver.poll(60), "the SQS server did not start"
            ground = Ground(receiver.recv())
            with ground.place(30):  # it responds, so all of its sockets are open
                listeners.assert_loopback_only()
            yield ground
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def working(target: Callable[..., None], *args: Any, processes: int = 1) -> Iterator[None]:
    """Run several processes until the block is left, and kill them then."""
    if processes == 0:
        yield
        return
    with _process(target, *args), working(target, *args, processes=processes - 1):
        yield


@contextmanager
def _process(target: Callable[..., None], *args: Any) -> Iterator[BaseProcess]:
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.daemon = True
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def wait_until_drained(place: Place, count: int, wait_timeout_seconds: float) -> Figures:
    """Return the figures when `count` messages are deleted or the timeout is over."""
    give_up_at = monotonic() + wait_timeout_seconds
    while (figures := place.figures()).deleted < count and monotonic() < give_up_at:
        sleep(0.05)
    return figures


def _control(url: str, method: str) -> Figures:
    with urlopen(Request(url, method=method), timeout=30) as answer:
        return Figures(**json.load(answer))
