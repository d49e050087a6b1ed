"""What exports talk to, as bad as the network: a host of files, and Step Functions.

Run as a program it says the address of each on standard output and serves until it is
killed. Both are slow, cut connections and turn calls down at random until CALM is posted.
What they saw is told at BOOKS.
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

BOOKS, CALM, OPEN = "/books", "/calm", "/open"
CHUNK = 32_768
GONE = "gone"  # names that begin so are not there


def content(path: str, size: int) -> bytes:
    """The file of that name; of the same name another size is another file."""
    return hashlib.shake_128(f"{path} {size}".encode()).digest(size)


# -- Step Functions


@dataclass
class Token:
    """A state that waits. `answers` are all that were tried: kind, error, taken or not."""

    opened_at: float
    heard_at: float
    heartbeat_seconds: float
    closed: bool = False
    timed_out: bool = False
    beats: int = 0
    answers: list[tuple[str, str, bool]] = field(default_factory=list)

    def look(self, now: float) -> "Token":
        if not self.closed and now >= self.heard_at + self.heartbeat_seconds:
            self.timed_out = True  # nothing brings it back
        return self

    @property
    def state(self) -> str:
        return "CLOSED" if self.closed else "TIMED_OUT" if self.timed_out else "OPEN"


class States:
    """The states that wait behind tokens, each with its clock."""

    def __init__(self) -> None:
        self._tokens: dict[str, Token] = {}

    def open(self, token: str, heartbeat_seconds: float) -> None:
        now = monotonic()
        self._tokens[token] = Token(now, now, heartbeat_seconds)

    def call(self, action: str, said: dict[str, Any]) -> str | None:
        """The code of the refusal; None: taken."""
        now = monotonic()
        token = self._tokens.get(said["taskToken"])
        if token is None:
            return "InvalidToken"
        taken = token.look(now).state == "OPEN"
        if action == "SendTaskHeartbeat":
            token.beats += taken
        else:
            token.answers.append((action, said.get("error", ""), taken))
            token.closed = token.closed or taken
        if taken:
            token.heard_at = now
        return None if taken else "TaskTimedOut"

    def books(self) -> dict[str, Any]:
        now = monotonic()
        return {
            name: {**asdict(token.look(now)), "state": token.state}
            for name, token in self._tokens.items()
        }


# -- HTTP, as much as is needed


@dataclass
class Ask:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def start(self) -> int:
        text = self.headers.get("range", "").removeprefix("bytes=").removesuffix("-")
        return int(text) if text.isdigit() else 0


class Cut(Exception):
    """The connection ends here."""


Answer = Callable[[Ask, asyncio.StreamWriter], Awaitable[None]]


def talking(answer: Answer) -> Callable[..., Awaitable[None]]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The other side is killed in the middle of everything.
        with suppress(Cut, ConnectionError, asyncio.IncompleteReadError):
            while True:
                await answer(await _asked(reader), writer)
        writer.transport.abort()

    return talk


async def _asked(reader: asyncio.StreamReader) -> Ask:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    fields = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Ask(method, path, headers, body)


async def _say(writer: asyncio.StreamWriter, status: str, body: bytes, *fields: str) -> None:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields, "", "")
    writer.write("\r\n".join(lines).encode() + body)
    await writer.drain()


class Service:
    """Both servers; one of them would do, but they are two hosts in life."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.states = States()
        self.bad = True
        self.fetched: dict[str, int] = {}  # files sent to their last byte
        self.calls = self.troubles = 0

    def _trouble(self, chance: float) -> bool:
        found = self.bad and self.random.random() < chance
        self.troubles += found
        return found

    # -- files: /SIZE/NAME

    async def file(self, ask: Ask, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.random.uniform(0, 0.3))
        path = ask.path.partition("?")[0]
        _, size, name = path.split("/", 2)
        if self._trouble(0.06):
            await _say(writer, "503 Service Unavailable", b"later")
        elif self._trouble(0.03):
            raise Cut
        elif name.startswith(GONE):
            await _say(writer, "404 Not Found", b"no such file")
        else:
            await self._send(content(name, int(size)), ask, writer)
            self.fetched[path] = self.fetched.get(path, 0) + 1

    async def _send(self, data: bytes, ask: Ask, writer: asyncio.StreamWriter) -> None:
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        start = ask.start if ask.headers.get("if-range") == tag else 0
        lines = [f"Content-Length: {len(data) - start}", f"ETag: {tag}"]
        if start >= len(data) > 0:
            raise Cut
        if start:
            lines.append(f"Content-Range: bytes {start}-{len(data) - 1}/{len(data)}")
        status = "206 Partial Content" if start else "200 OK"
        writer.write("\r\n".join((f"HTTP/1.1 {status}", *lines, "", "")).encode())
        for at in range(start, len(data), CHUNK):
            if self._trouble(0.03):
                raise Cut
            writer.write(data[at : at + CHUNK])
            await writer.drain()
            await asyncio.sleep(self.random.uniform(0, 0.02))

    # -- Step Functions, and the test's own questions

    async def callback(self, ask: Ask, writer: asyncio.StreamWriter) -> None:
        if ask.path == BOOKS:
            await _say(writer, "200 OK", json.dumps(self._books()).encode())
        elif ask.path == CALM:
            self.bad = False
            await _say(writer, "200 OK", b"")
        elif ask.path == OPEN:
            self.states.open(**json.loads(ask.body))
            await _say(writer, "200 OK", b"")
        else:
            await self._called(ask, writer)

    def _books(self) -> dict[str, Any]:
        return {
            "tokens": self.states.books(),
            "fetched": self.fetched,
            "calls": self.calls,
            "troubles": self.troubles,
        }

    async def _called(self, ask: Ask, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        kind = "Content-Type: application/x-amz-json-1.0"
        await asyncio.sleep(self.random.uniform(0, 0.02))
        if self._trouble(0.05):
            said = json.dumps({"__type": "ThrottlingException", "message": "slow down"})
            await _say(writer, "400 Bad Request", said.encode(), kind)
            return
        if self._trouble(0.04):
            raise Cut  # never acted on; the client cannot know
        action = ask.headers["x-amz-target"].rpartition(".")[2]
        code = self.states.call(action, json.loads(ask.body))
        if self._trouble(0.08):
            raise Cut  # acted on; the client cannot know
        if code is None:
            await _say(writer, "200 OK", b"{}", kind)
        else:
            said = json.dumps({"__type": code, "message": "Task Timed Out: 'x'"})
            await _say(writer, "400 Bad Request", said.encode(), kind)


async def _serve(seed: int) -> None:
    service = Service(seed)
    servers = [
        await asyncio.start_server(talking(answer), "127.0.0.1", 0, backlog=256)
        for answer in (service.file, service.callback)
    ]
    for server in servers:
        print("127.0.0.1:{1}".format(*server.sockets[0].getsockname()), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


# -- the test's side


@dataclass(frozen=True, slots=True)
class World:
    files: str  # host:port
    states: str

    def open(self, token: str, heartbeat_seconds: float) -> None:
        said = {"token": token, "heartbeat_seconds": heartbeat_seconds}
        self._ask(OPEN, json.dumps(said).encode())

    def calm(self) -> None:
        self._ask(CALM, b"now")

    def books(self) -> dict[str, Any]:
        found = json.loads(self._ask(BOOKS))
        assert isinstance(found, dict)
        return found

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        with urlopen(Request(f"http://{self.states}{path}", body), timeout=60) as answer:
            return bytes(answer.read())


@contextmanager
def serving(seed: int) -> Iterator[World]:
    command = [sys.executable, str(Path(__file__)), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            files, states = (process.stdout.readline().strip() for _ in range(2))
            assert states, "the server did not start; see stderr"
            yield World(files, states)
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
