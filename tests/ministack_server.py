"""ministack for tests: a server of AWS services on a free port of the loopback.

    pytest_plugins = ["ministack_server"]

    def test_something(ministack: Ministack) -> None:
        sqs = ministack.client("sqs")

(Import the class for type checkers only: pytest wants to load this module itself.)

One server for each process that runs tests, started on first use. It is a child of that
process and is ended by its handle, whatever happened.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

REGION, ACCOUNT = "us-east-1", "000000000000"
_START_SECONDS = 60
_TRIES = 5  # somebody may take the port between our look and the server's


@dataclass(frozen=True, slots=True)
class Ministack:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def env(self) -> dict[str, str]:
        """What boto3 needs to find it, for the environment of another process."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=ACCOUNT,
            aws_secret_access_key="test",
            config=Config(connect_timeout=10, read_timeout=60),
        )


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    folder = tmp_path_factory.mktemp("ministack")
    server = _started(folder)
    try:
        yield server
    finally:
        _end(server)


def _started(folder: Path) -> Ministack:
    for _ in range(_TRIES):
        server = _start(folder, _free_port())
        if _answers(server):
            return server
        _end(server)
    raise AssertionError(f"ministack does not start:\n{server.log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(folder: Path, port: int) -> Ministack:
    url, log = f"http://127.0.0.1:{port}", folder / f"{port}.log"
    theirs = {
        "AWS_ENDPOINT_URL": url,  # for the functions it runs
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        "TMPDIR": str(folder),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ministack"],
            env={**os.environ, **theirs},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its functions are processes, and end with it
        )
    return Ministack(url, process, log)


def _answers(server: Ministack) -> bool:
    give_up_at = time.monotonic() + _START_SECONDS
    while server.process.poll() is None and time.monotonic() < give_up_at:
        try:
            with urllib.request.urlopen(f"{server.url}/_ministack/health", timeout=5):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.05)
    return False


def _end(server: Ministack) -> None:
    server.process.terminate()
    try:
        server.process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait(10)
