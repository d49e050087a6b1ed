"""Run ministack, a server for AWS services, on a free port of the loopback for tests.

    pytest_plugins = ["support.ministack_server"]

    def test_something(ministack: Ministack) -> None:
        sqs = ministack.client("sqs")

(Import the class for type checkers only, because pytest must load this module itself.)

Each process that runs tests has its own server, started on first use. It is a child of that
process, which ends it by its handle in every case.
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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.aws.client_kinds import make_server_client

REGION, ACCOUNT = "us-east-1", "000000000000"
_START_SECONDS = 60
_MAX_TRIES = 5  # another process may take the port before the server opens it


@dataclass(frozen=True, slots=True)
class Ministack:
    """A running server."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment in which boto3 of another process finds this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": "test",
        }

    def client(self, service: str) -> Any:
        """Make a boto3 client for this server."""
        return make_server_client("boto3", service, self.url, access_key=ACCOUNT)


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """A running server, shared by all tests of this process."""
    with run_ministack(tmp_path_factory.mktemp("ministack")) as server:
        yield server


@contextmanager
def run_ministack(folder: Path, **settings: str) -> Iterator[Ministack]:
    """Run a server of its own, with these variables in its environment."""
    server = _start_server(folder, settings)
    try:
        yield server
    finally:
        _end(server)


def _start_server(folder: Path, settings: dict[str, str]) -> Ministack:
    for _ in range(_MAX_TRIES):
        server = _start_process(folder, _find_free_port(), settings)
        if _is_responding(server):
            return server
        _end(server)
    raise AssertionError(f"ministack does not start:\n{server.log.read_text()[-2000:]}")


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start_process(folder: Path, port: int, more: dict[str, str]) -> Ministack:
    url, log = f"http://127.0.0.1:{port}", folder / f"{port}.log"
    settings = {
        "AWS_ENDPOINT_URL": url,  # for the functions it runs
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        "TMPDIR": str(folder),
        **more,
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ministack"],
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its functions are processes that must end with it
        )
    return Ministack(url, process, log)


def _is_responding(server: Ministack) -> bool:
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
