"""Connections to the console that send half a request."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tools.example_console import serve_in_thread

from holdfast.web import web_app
from support.waiting import WAIT_TIMEOUT_SECONDS

HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
STATIC = b"GET /static/icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FORM = (
    b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 50\r\n\r\ntoken="
)


@pytest.fixture
def resources() -> Iterator[ExitStack]:
    with ExitStack() as resources:
        yield resources


class ConnectableConsole:
    """A console with short limits, and raw connections to it."""

    def __init__(self, folder: Path, resources: ExitStack, **limits: float) -> None:
        self.app = web_app([f"sqlite:{folder}/work.db/enrich"])
        address = serve_in_thread(self.app, resources, **limits)
        self._port, self._resources = int(address.rpartition(":")[2]), resources

    def connect(self, sent: bytes = b"") -> socket.socket:
        """Open a connection and send the beginning of a request."""
        connection = socket.create_connection(("127.0.0.1", self._port), WAIT_TIMEOUT_SECONDS)
        self._resources.enter_context(connection)
        connection.sendall(sent)
        return connection

    def request(self, head: bytes) -> tuple[socket.socket, bytes]:
        """Send a request until it is answered, because a busy machine may exceed the deadline.

        Returns its connection and the beginning of the response.
        """
        while True:
            try:
                connection = self.connect(head + b"\r\n")
                if received := connection.recv(65536):
                    return connection, received
            except ConnectionError:
                continue


def is_closed(connection: socket.socket) -> bool:
    """Wait until the connection is closed."""
    try:
        return connection.recv(4096) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "sent", [b"", HEAD, FORM], ids=["nothing", "half a head", "half a body"]
)
def test_a_request_that_is_not_completed_in_time_is_closed(
    sent: bytes, tmp_path: Path, resources: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    console = ConnectableConsole(tmp_path, resources, request_timeout_seconds=0.2)
    assert is_closed(console.connect(sent))
    resources.close()
    assert caplog.messages == []


def test_single_bytes_do_not_prolong_a_request(tmp_path: Path, resources: ExitStack) -> None:
    console = ConnectableConsole(tmp_path, resources, request_timeout_seconds=0.5)
    connection = console.connect(HEAD + b"X: ")
    connection.settimeout(0.05)
    for _ in range(round(WAIT_TIMEOUT_SECONDS / 0.05)):
        try:
            connection.sendall(b"x")
            if connection.recv(1) == b"":
                break
        except TimeoutError:
            continue
        except ConnectionError:
            break
    else:
        pytest.fail("the connection stays open")


def test_a_later_request_of_a_connection_has_a_deadline_too(
    tmp_path: Path, resources: ExitStack
) -> None:
    console = ConnectableConsole(tmp_path, resources, request_timeout_seconds=0.2)
    connection, received = console.request(STATIC)
    assert b"200 OK" in received
    connection.sendall(HEAD)
    while not is_closed(connection):  # what remains of the response comes first
        pass


def test_connections_beyond_the_limit_are_closed_and_the_others_are_answered(
    tmp_path: Path, resources: ExitStack
) -> None:
    console = ConnectableConsole(
        tmp_path, resources, max_connections=2, request_timeout_seconds=WAIT_TIMEOUT_SECONDS
    )
    first, second = console.connect(), console.connect()
    assert is_closed(console.connect())
    for connection in (first, second):
        connection.sendall(HEAD + b"\r\n")
        assert b"200 OK" in connection.recv(65536)
    first.close()
    assert b"200 OK" in console.request(HEAD)[1]
