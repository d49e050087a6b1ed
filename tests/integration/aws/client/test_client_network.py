"""Clients on real TLS, and with names that do not resolve."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import pytest
from aws_responses import CONNECTIONS, QUEUE, close_after
from botocore.exceptions import SSLError
from client_maker import ClientMaker, call_queue, send_success

from holdfast.errors import QueueUnavailable
from holdfast.exports.errors import CallbackRefused, CallbackUnclear
from support.aws.sqs_over_http import make_success
from support.certificates import make_certificate
from support.http_server import LoopbackServer
from support.waiting import wait_until

URL = make_success({"QueueUrl": QUEUE})


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_certificate(tmp_path_factory.mktemp("tls") / "server.pem")


@pytest.fixture
def secure_server(certificate: str) -> Iterator[LoopbackServer]:
    with LoopbackServer(certificate) as server:
        server.on("/", URL)
        yield server


def test_a_certificate_of_the_given_bundle_is_accepted(
    maker: ClientMaker,
    secure_server: LoopbackServer,
    certificate: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", certificate)
    client = maker.make_fail_fast(url=secure_server.url(""))
    assert [call_queue(client) for _ in range(3)] == [QUEUE] * 3
    assert {ask.connection for ask in secure_server.asks} == {1}


@pytest.mark.parametrize("name", ["closed", "reset", "half closed", "cut in the body"])
def test_a_secure_connection_that_breaks_is_an_outage_as_well(
    maker: ClientMaker,
    secure_server: LoopbackServer,
    certificate: str,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", certificate)
    client = maker.make_fail_fast(url=secure_server.url(""))
    secure_server.on("/", CONNECTIONS[name], close_after(URL))
    with pytest.raises(QueueUnavailable):
        call_queue(client)
    assert len(secure_server.asks) == 1
    for _ in range(3):  # each on a new connection, because the server closes them while idle
        assert call_queue(client) == QUEUE
        wait_until(lambda: secure_server.open == 0)
    assert [ask.connection for ask in secure_server.asks] == [1, 2, 3, 4]


def test_nothing_is_sent_to_a_server_with_an_unknown_certificate(
    maker: ClientMaker, secure_server: LoopbackServer
) -> None:
    client = maker.make_fail_fast(url=secure_server.url(""))
    with pytest.raises(QueueUnavailable, match="SSLError"):
        call_queue(client)
    assert secure_server.asks == []


def test_nothing_is_sent_to_a_server_with_the_certificate_of_another(
    maker: ClientMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_certificate(tmp_path / "other.pem", "sqs.eu-west-1.amazonaws.com")
    monkeypatch.setenv("AWS_CA_BUNDLE", other)
    with LoopbackServer(other) as server:
        client = maker.make_fail_fast("stepfunctions", url=server.url(""))
        with pytest.raises(CallbackUnclear, match="SSLError"):
            send_success(client)
        assert server.asks == []


def test_a_bundle_that_is_missing_is_reported_and_nothing_is_sent(
    lean: ClientMaker, secure_server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/bundle.pem")
    client = lean.make_fail_fast(url=secure_server.url(""))
    with pytest.raises(SSLError, match="/nowhere/bundle"):
        client.get_queue_url(QueueName="letters")
    assert secure_server.asks == []


def test_a_server_without_tls_is_an_outage(maker: ClientMaker, server: LoopbackServer) -> None:
    url = f"https://{server.origin}"
    with pytest.raises(QueueUnavailable):
        call_queue(maker.make_fail_fast(url=url, seconds=2.0))


# -- names and addresses


def fail_to_resolve(*_: Any, **__: Any) -> NoReturn:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


def test_a_name_that_does_not_resolve_is_an_outage(
    maker: ClientMaker, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    url = "http://sqs.nowhere.invalid"
    clients = maker.make_fail_fast("stepfunctions", url=url), maker.make_retrying(url=url)
    monkeypatch.setattr(socket, "getaddrinfo", fail_to_resolve)
    with pytest.raises(CallbackRefused, match="never reached"):
        send_success(clients[0])
    assert waits == []
    with pytest.raises(QueueUnavailable, match="EndpointConnectionError"):
        call_queue(clients[1])
    assert len(waits) == 3


def test_a_name_that_no_server_can_have_is_an_outage(lean: ClientMaker) -> None:
    """A part of it has 64 letters, for which boto3 makes no client."""
    client = lean.make_fail_fast("stepfunctions", url=f"http://{'x' * 64}.invalid")
    with pytest.raises(CallbackRefused, match="never reached"):
        send_success(client)


def test_a_port_on_which_no_server_listens_is_an_outage(maker: ClientMaker) -> None:
    with LoopbackServer() as server:
        url = server.url("")
    with pytest.raises(CallbackRefused, match="never reached"):
        send_success(maker.make_fail_fast("stepfunctions", url=url))


@pytest.fixture
def full_port() -> Iterator[int]:
    """A full backlog accepts no connection, like a firewall that drops packets."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port: int = listening.getsockname()[1]
        for _ in range(4):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port))
        yield port


def test_the_timeout_of_connecting_holds(maker: ClientMaker, full_port: int) -> None:
    url = f"http://127.0.0.1:{full_port}"
    with pytest.raises(CallbackRefused, match="ConnectTimeoutError"):
        send_success(maker.make_fail_fast("stepfunctions", url=url, seconds=2.0))


def resolve_to(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let every name have addresses with these ports of this machine."""
    stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    addresses = [(*stream, ("127.0.0.1", port)) for port in ports]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)


def test_all_addresses_of_a_name_share_one_timeout(
    lean: ClientMaker, full_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease counts on it. With boto3, each address has the whole timeout."""
    client = lean.make_fail_fast("stepfunctions", url="http://many.invalid", seconds=8.0)
    resolve_to(monkeypatch, *[full_port] * 20)
    started = monotonic()
    with pytest.raises(CallbackRefused, match="ConnectTimeoutError"):
        send_success(client)
    assert 1.0 <= monotonic() - started < 10.0  # one second, not twenty


def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    lean: ClientMaker, server: LoopbackServer, full_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = lean.make_fail_fast(url="http://many.invalid", seconds=16.0)
    server.on("/", URL)
    resolve_to(monkeypatch, full_port, int(server.origin.rpartition(":")[2]))
    assert call_queue(client) == QUEUE
