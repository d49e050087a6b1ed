"""Clients of both kinds, made as Holdfast makes them, and a server that does as it is told."""

import time
from collections.abc import Iterator

import pytest
from client_maker import ClientMaker
from known_keys import FIRST

from holdfast.aws import clients
from support.aws.client_kinds import KINDS
from support.http_server import LoopbackServer


@pytest.fixture(scope="module", autouse=True)
def sessions() -> Iterator[None]:
    """Forget the sessions of other tests, which remember their credentials."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for sessions in ("_sessions", "_boto3_sessions"):
            monkeypatch.setattr(clients, sessions, {})
        yield


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every client these credentials."""
    for name, value in FIRST.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


@pytest.fixture
def no_environment_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove these credentials, also from the sessions that remember them."""
    for name in FIRST.env:
        monkeypatch.delenv(name)
    for sessions in ("_sessions", "_boto3_sessions"):
        monkeypatch.setattr(clients, sessions, {})


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def maker(kind: str, server: LoopbackServer) -> Iterator[ClientMaker]:
    """Make clients of one kind that call the server; they are closed with the test."""
    maker = ClientMaker(kind, server)
    yield maker
    maker.close()


@pytest.fixture
def lean(server: LoopbackServer) -> Iterator[ClientMaker]:
    """Make lean clients, for what boto3 does not promise."""
    maker = ClientMaker("lean", server)
    yield maker
    maker.close()


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as server:
        yield server


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let no client sleep between its tries, and return how long each would have slept."""
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits
