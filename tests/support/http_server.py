"""An HTTP server on a free port of the loopback, which misbehaves as a test wants.

    with LoopbackServer() as server:
        server.on("/a", file(b"..."))
        server.on("/b", lambda ask, wire: wire.send(b"no HTTP at all"))

A route gets each request and the raw connection. The server runs in threads of this process.
It keeps the requests, so that the test can inspect them.
"""

import re
import socket
import ssl
import struct
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from termios import TIOCOUTQ
from threading import Event, Lock, Thread
from typing import Self

ETAG = '"v1"'


@dataclass
class Ask:
    """One request."""

    path: str  # without the query
    query: str
    headers: dict[str, str]
    number: int  # of this path since its routes were set, from 1
    connection: int  # from 1
    body: bytes = b""
    method: str = "GET"

    @property
    def start(self) -> int:
        """The first requested byte; 0 if the complete file is requested."""
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        return int(match[1]) if match else 0


class Wire:
    """The server's side of a connection."""

    def __init__(self, connection: socket.socket, server: "LoopbackServer") -> None:
        self._connection = connection
        self._server = server
        self.stopped = server.stopped
        self.closed = False

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def head(self, status: str, *fields: str) -> None:
        self.send("\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode("latin-1"))

    def body(self, data: bytes) -> None:
        """Send bytes of a file, and count them first: a client may have them before we know."""
        for start in range(0, len(data), 1 << 16):
            piece = data[start : start + (1 << 16)]
            self._server.count(len(piece))
            self.send(piece)

    def await_arrival(self) -> None:
        """Wait until everything that was sent has arrived in the client's kernel."""
        unacknowledged = array("i", [1])
        while unacknowledged[0]:
            ioctl(self._connection, TIOCOUTQ, unacknowledged)

    def close(self) -> None:
        self.closed = True

    def half_close(self) -> None:
        """Send nothing more, and leave the client's direction open."""
        self._connection.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Reset the connection instead of closing it."""
        linger = struct.pack("ii", 1, 0)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.closed = True

    def hang(self) -> None:
        """Send nothing more until the client closes or the test ends."""
        self._connection.settimeout(0.05)
        while not self.stopped.is_set():
            try:
                if not self._connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.closed = True


Route = Callable[[Ask, Wire], None]


@dataclass
class LoopbackServer:
    """The server. `certificate` (a file with key and certificate) makes it speak TLS.

    `otherwise` answers requests of paths without a route.
    """

    certificate: str | None = None
    host: str = "127.0.0.1"
    otherwise: Route = field(default_factory=lambda: status("404 Not Found"))
    asks: list[Ask] = field(default_factory=list)
    body_bytes: int = 0
    connections: int = 0
    stopped: Event = field(default_factory=Event)

    def __enter__(self) -> Self:
        self._routes: dict[str, Route] = {}
        self._numbers: dict[str, int] = {}
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[Thread] = []
        self._socket = socket.create_server((self.host, 0), backlog=64)
        self.port: int = self._socket.getsockname()[1]
        self._accepting = Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            still_open = list(self._open)
        for connection in still_open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in [self._accepting, *self._threads]:
            thread.join(10)

    @property
    def origin(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, path: str) -> str:
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://{self.origin}{path}"

    def on(self, path: str, *routes: Route) -> str:
        """Set the routes of `path`: one for each request in order; the last one stays."""

        def in_turn(ask: Ask, wire: Wire) -> None:
            routes[min(ask.number, len(routes)) - 1](ask, wire)

        with self._lock:
            self._routes[path] = in_turn
            self._numbers[path] = 0
        return self.url(path)

    def asked(self, path: str) -> list[Ask]:
        return [ask for ask in self.asks if ask.path == path]

    @property
    def open(self) -> int:
        """The number of open connections."""
        with self._lock:
            return len(self._open)

    def count(self, sent: int) -> None:
        with self._lock:
            self.body_bytes += sent

    # -- inside

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            thread = Thread(target=self._talk, args=(connection, self.connections), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _talk(self, connection: socket.socket, number: int) -> None:
        with self._lock:
            self._open.add(connection)
        try:
            with suppress(OSError), self._secured(connection) as spoken:
                with self._lock:  # TLS takes the socket over
                    self._open.discard(connection)
                    self._open.add(connection := spoken)
                self._serve(spoken, number)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _secured(self, connection: socket.socket) -> socket.socket:
        if self.certificate is None:
            return connection
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        return context.wrap_socket(connection, server_side=True)

    def _serve(self, connection: socket.socket, number: int) -> None:
        wire, received = Wire(connection, self), b""
        while not wire.closed:
            while b"\r\n\r\n" not in received:
                data = connection.recv(65_536)
                if not data:
                    return
                received += data
            head, _, received = received.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            fields = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in fields}
            if headers.get("expect") == "100-continue":
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            length = int(headers.get("content-length", 0))
            while len(received) < length:
                data = connection.recv(65_536)
                if not data:
                    return
                received += data
            body, received = received[:length], received[length:]
            self._answer(first, headers, body, wire, number)

    def _answer(
        self, first: str, headers: dict[str, str], body: bytes, wire: Wire, connection: int
    ) -> None:
        method, target, _ = first.split(" ")
        path, _, query = target.partition("?")
        with self._lock:
            number = self._numbers[path] = self._numbers.get(path, 0) + 1
            ask = Ask(path, query, headers, number, connection, body, method)
            self.asks.append(ask)
        self._routes.get(path, self.otherwise)(ask, wire)


# -- routes


def file(data: bytes, *fields: str, etag: str | None = ETAG, ranges: bool = True) -> Route:
    """Respond like a good server: the file, or its rest if it is still the same."""

    def route(ask: Ask, wire: Wire) -> None:
        tags = [f"ETag: {etag}"] if etag else []
        fresh = ask.headers.get("if-range") in (None, etag)
        if not ranges or not ask.start or not fresh:
            wire.head("200 OK", f"Content-Length: {len(data)}", *tags, *fields)
            wire.body(data)
        elif ask.start >= len(data):
            wire.head("416 No", f"Content-Range: bytes */{len(data)}", "Content-Length: 0")
        else:
            rest = data[ask.start :]
            span = f"Content-Range: bytes {ask.start}-{len(data) - 1}/{len(data)}"
            wire.head("206 Partial Content", f"Content-Length: {len(rest)}", span, *tags)
            wire.body(rest)

    return route


def gated(data: bytes, gate: Event) -> Route:
    """Return a route that sends the first byte at once and the rest when the gate opens."""

    def route(ask: Ask, wire: Wire) -> None:
        if gate.is_set():
            file(data)(ask, wire)
            return
        wire.head("200 OK", f"Content-Length: {len(data)}", f"ETag: {ETAG}")
        wire.body(data[:1])
        while not (gate.is_set() or wire.stopped.is_set()):
            time.sleep(0.02)
        wire.body(data[1:])

    return route


def status(line: str, *fields: str, body: bytes = b"") -> Route:
    def route(ask: Ask, wire: Wire) -> None:
        wire.head(line, f"Content-Length: {len(body)}", *fields)
        wire.send(body)

    return route


def redirect(location: str, line: str = "302 Found") -> Route:
    return status(line, f"Location: {location}")
