"""Run ministack, a server for AWS services, on a free port of the loopback for tests.

    pytest_plugins = ["support.ministack_server"]

    def test_something(ministack: Ministack) -> None:
        sqs = ministack.client("sqs")

(Import the class for type checkers only, because pytest must load this module itself.)

Each process that runs tests has its own server, started on first use. It is a child of that
process, which ends it by its handle in every case.
"""

import io
import os
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.aws.client_kinds import make_server_client

REGION, ACCOUNT = "us-east-1", "000000000000"
_COMMAND = [sys.executable, "-m", "hypercorn", "ministack.app:app", "--workers", "0"]


@dataclass(frozen=True, slots=True)
class Ministack:
    """A running server, and an account on it. Accounts share nothing."""

    url: str
    account: str = ACCOUNT

    @property
    def env(self) -> dict[str, str]:
        """The environment in which boto3 of another process finds this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.account,
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def client(self, service: str) -> Any:
        """Make a boto3 client for this server."""
        return make_server_client("boto3", service, self.url, access_key=self.account)

    def create_function(
        self, name: str, handler: str, env: dict[str, str], source: str = ""
    ) -> None:
        """Create a function with this environment. `source` is its module `function`."""
        package = io.BytesIO()
        with zipfile.ZipFile(package, "w") as archive:
            python = f'#!/bin/sh\nexec "{sys.executable}" -m awslambdaric "$_HANDLER"\n'
            archive.writestr("bootstrap", python)
            archive.writestr("function.py", source)
        self.client("lambda").create_function(
            FunctionName=name,
            Runtime="provided.al2023",  # so that awslambdaric runs it, as on AWS
            Handler=handler,
            Role="arn:aws:iam::000000000000:role/test",
            Code={"ZipFile": package.getvalue()},
            Timeout=60,
            Environment={"Variables": env},
        )

    def map_event_source(self, name: str, arn: str) -> None:
        """Let Lambda call the function with batches of the queue."""
        self.client("lambda").create_event_source_mapping(
            EventSourceArn=arn,
            FunctionName=name,
            BatchSize=10,
            FunctionResponseTypes=["ReportBatchItemFailures"],
        )


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """A running server, shared by all tests of this process."""
    with run_ministack(tmp_path_factory.mktemp("ministack")) as server:
        yield server


@contextmanager
def run_ministack(folder: Path, **settings: str) -> Iterator[Ministack]:
    """Run a server of its own, with these variables in its environment.

    It inherits a socket that listens already, so no port is guessed, and requests wait until it
    has started.
    """
    with (
        socket.create_server(("127.0.0.1", 0), backlog=64) as listening,
        (folder / "ministack.log").open("wb") as log,
    ):
        port, number = listening.getsockname()[1], listening.fileno()
        url = f"http://127.0.0.1:{port}"
        own = {
            "AWS_ENDPOINT_URL": url,  # for the functions it runs
            "GATEWAY_PORT": str(port),
            "MINISTACK_ACCOUNT_ID": ACCOUNT,
            "MINISTACK_REGION": REGION,
            "TMPDIR": str(folder),
        }
        process = subprocess.Popen(
            [*_COMMAND, "--bind", f"fd://{number}"],
            env={**os.environ, **own, **settings},
            pass_fds=[number],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its functions are processes that must end with it
        )
    try:
        yield Ministack(url)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
