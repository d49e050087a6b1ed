"""A file server and Step Functions with network faults, for the export chaos tests.

Run as a program, it prints the address of each on standard output and serves until it is
killed. Both are slow, cut connections and refuse calls at random until CALM is posted. Their
totals can be read at TOTALS.
"""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any
from urllib.request import Request, urlopen

TOTALS, CALM, OPEN = "/totals", "/calm", "/open"
CHUNK = 32_768
MISSING = "gone"  # files whose names begin with it do not exist


def make_content(path: str, size: int) -> bytes:
    """Return the content of a file. The same name with another size is another file."""
    return hashlib.shake_128(f"{path} {size}".encode()).digest(size)


# -- Step Functions


@dataclass
class WaitingToken:
    """A state that waits. `answers` has the kind, error and acceptance of each callback."""

    opened_at: float
    heard_at: float
    heartbeat_seconds: float
    closed: bool = False
    timed_out: bool = False
    beats: int = 0
    answers: list[tuple[str, str, bool]] = field(default_factory=list)

    def check_timeout(self, now: float) -> "WaitingToken":
        """Time the token out if its last heartbeat is too old, and return the token."""
        if not self.closed and now >= self.heard_at + self.heartbeat_seconds:
            self.timed_out = True  # this is final
        return self

    @property
    def state(self) -> str:
        """Return CLOSED, TIMED_OUT or OPEN."""
        return "CLOSED" if self.closed else "TIMED_OUT" if self.timed_out else "OPEN"


class TokenTable:
    """The states that wait behind tokens, each with its own timeout."""

    def __init__(self) -> None:
        self._tokens: dict[str, WaitingToken] = {}

    def open(self, token: str, heartbeat_seconds: float) -> None:
        """Add a token that waits."""
        now = monotonic()
        self._tokens[token] = WaitingToken(now, now, heartbeat_seconds)

    def call(self, action: str, arguments: dict[str, Any]) -> str | None:
        """Apply a call. Return None if it is accepted, otherwise the error code."""
        now = monotonic()
        token = self._tokens.get(arguments["taskToken"])
        if token is None:
            return "InvalidToken"
        accepted = token.check_timeout(now).state == "OPEN"
        if action == "SendTaskHeartbeat":
            token.beats += accepted
        else:
            token.answers.append((action, arguments.get("error", ""), accepted))
            token.closed = token.closed or accepted
        if accepted:
            token.heard_at = now
        return None if accepted else "TaskTimedOut"

    def read_totals(self) -> dict[str, Any]:
        """Return the state of every token."""
        now = monotonic()
        return {
            name: {**asdict(token.check_timeout(now)), "state": token.state}
            for name, token in self._tokens.items()
        }


# -- a minimal HTTP server


@dataclass
class HttpRequest:
    """A request that was read."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def start(self) -> int:
        """Return the first byte that the Range header asks for."""
        text = self.headers.get("range", "").removeprefix("bytes=").removesuffix("-")
        return int(text) if text.isdigit() else 0


class ConnectionCut(Exception):
    """The connection must be closed now."""


Responder = Callable[[HttpRequest, asyncio.StreamWriter], Awaitable[None]]


def make_handler(respond: Responder) -> Callable[..., Awaitable[None]]:
    """Return a connection handler that responds to requests until the connection ends."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The client may be killed at any moment.
        with suppress(ConnectionCut, ConnectionError, asyncio.IncompleteReadError):
            while True:
                await respond(await _read_request(reader), writer)
        writer.transport.abort()

    return handle


async def _read_request(reader: asyncio.StreamReader) -> HttpRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    fields = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return HttpRequest(method, path, headers, body)


async def _write_response(
    writer: asyncio.StreamWriter, status: str, body: bytes, *fields: str
) -> None:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", "")
    writer.write("\r\n".join(lines).encode() + body)
    await writer.drain()


class FaultyServers:
    """Both servers, with their faults and totals."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.states = TokenTable()
        self.is_faulty = True
        self.fetched: dict[str, int] = {}  # how often each file was sent completely
        self.calls = self.faults = 0

    def _inject_fault(self, chance: float) -> bool:
        happens = self.is_faulty and self.random.random() < chance
        self.faults += happens
        return happens

    # -- files: /SIZE/NAME

    async def serve_file(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        """Send the file /SIZE/NAME, or a fault."""
        await asyncio.sleep(self.random.uniform(0, 0.3))
        path = request.path.partition("?")[0]
        _, size, name = path.split("/", 2)
        if self._inject_fault(0.06):
            await _write_response(writer, "503 Service Unavailable", b"later")
        elif self._inject_fault(0.03):
            raise ConnectionCut
        elif name.startswith(MISSING):
            await _write_response(writer, "404 Not Found", b"no such file")
        else:
            await self._send_content(make_content(name, int(size)), request, writer)
            self.fetched[path] = self.fetched.get(path, 0) + 1

    async def _send_content(
        self, data: bytes, request: HttpRequest, writer: asyncio.StreamWriter
    ) -> None:
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        start = request.start if request.headers.get("if-range") == tag else 0
        lines = [f"Content-Length: {len(data) - start}", f"ETag: {tag}"]
        if start >= len(data) > 0:
            raise ConnectionCut
        if start:
            lines.append(f"Content-Range: bytes {start}-{len(data) - 1}/{len(data)}")
        status = "206 Partial Content" if start else "200 OK"
        writer.write("\r\n".join((f"HTTP/1.1 {status}", *lines, "", "")).encode())
        for position in range(start, len(data), CHUNK):
            if self._inject_fault(0.03):
                raise ConnectionCut
            writer.write(data[position : position + CHUNK])
            await writer.drain()
            await asyncio.sleep(self.random.uniform(0, 0.02))

    # -- Step Functions, and the test's own requests

    async def serve_callback(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        """Respond to Step Functions calls and to the test's own requests."""
        if request.path == TOTALS:
            await _write_response(writer, "200 OK", json.dumps(self._collect_totals()).encode())
        elif request.path == CALM:
            self.is_faulty = False
            await _write_response(writer, "200 OK", b"")
        elif request.path == OPEN:
            self.states.open(**json.loads(request.body))
            await _write_response(writer, "200 OK", b"")
        else:
            await self._serve_call(request, writer)

    def _collect_totals(self) -> dict[str, Any]:
        return {
            "tokens": self.states.read_totals(),
            "fetched": self.fetched,
            "calls": self.calls,
            "faults": self.faults,
        }

    async def _serve_call(self, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        fields = ("Content-Type: application/x-amz-json-1.0", "x-amzn-RequestId: 1")
        await asyncio.sleep(self.random.uniform(0, 0.02))
        if self._inject_fault(0.05):
            body = json.dumps({"__type": "ThrottlingException", "message": "slow down"})
            await _write_response(writer, "400 Bad Request", body.encode(), *fields)
            return
        if self._inject_fault(0.04):
            raise ConnectionCut  # not processed, but the client cannot know
        action = request.headers["x-amz-target"].rpartition(".")[2]
        code = self.states.call(action, json.loads(request.body))
        if self._inject_fault(0.08):
            raise ConnectionCut  # processed, but the client cannot know
        if code is None:
            await _write_response(writer, "200 OK", b"{}", *fields)
        else:
            body = json.dumps({"__type": code, "message": "Task Timed Out: 'x'"})
            await _write_response(writer, "400 Bad Request", body.encode(), *fields)


async def _serve(seed: int) -> None:
    service = FaultyServers(seed)
    servers = [
        await asyncio.start_server(make_handler(respond), "127.0.0.1", 0, backlog=256)
        for respond in (service.serve_file, service.serve_callback)
    ]
    for server in servers:
        print("127.0.0.1:{1}".format(*server.sockets[0].getsockname()), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


# -- the test's side


@dataclass(frozen=True, slots=True)
class Servers:
    """The addresses of both servers, and the test's requests to them."""

    files: str  # host:port
    states: str

    def open(self, token: str, heartbeat_seconds: float) -> None:
        """Add a token that waits."""
        arguments = {"token": token, "heartbeat_seconds": heartbeat_seconds}
        self._request(OPEN, json.dumps(arguments).encode())

    def calm(self) -> None:
        """Stop injecting faults."""
        self._request(CALM, b"now")

    def read_totals(self) -> dict[str, Any]:
        """Return the servers' totals."""
        totals = json.loads(self._request(TOTALS))
        assert isinstance(totals, dict)
        return totals

    def _request(self, path: str, body: bytes | None = None) -> bytes:
        with urlopen(Request(f"http://{self.states}{path}", body), timeout=60) as response:
            return bytes(response.read())


@contextmanager
def run_servers(seed: int) -> Iterator[Servers]:
    """Run both servers in a process until the block ends."""
    command = [sys.executable, str(Path(__file__)), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            files, states = (process.stdout.readline().strip() for _ in range(2))
            assert states, "the server did not start; see stderr"
            yield Servers(files, states)
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
