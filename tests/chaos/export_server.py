"""A file server and Step Functions with network faults, for the export chaos tests.

Both are slow, cut connections and refuse calls at random until they are calm.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import Lock
from time import monotonic, sleep

from support.http_server import Ask, LoopbackServer, Route, Wire, status

CHUNK = 32_768
MISSING = "gone"  # files whose names begin with it do not exist


def make_content(path: str, size: int) -> bytes:
    """Return the content of a file. The same name with another size is another file."""
    return hashlib.shake_128(f"{path} {size}".encode()).digest(size)


@dataclass
class WaitingToken:
    """A state that waits. `answers` has the kind, error and acceptance of each callback."""

    heartbeat_seconds: float
    heard_at: float = field(default_factory=monotonic)
    closed: bool = False
    timed_out: bool = False
    answers: list[tuple[str, str, bool]] = field(default_factory=list)

    @property
    def state(self) -> str:
        """Return CLOSED, TIMED_OUT or OPEN."""
        if not self.closed and monotonic() >= self.heard_at + self.heartbeat_seconds:
            self.timed_out = True  # this is final
        return "CLOSED" if self.closed else "TIMED_OUT" if self.timed_out else "OPEN"

    def call(self, action: str, error: str) -> bool:
        """Apply a call, and return whether it is accepted."""
        is_accepted = self.state == "OPEN"
        if action != "SendTaskHeartbeat":
            self.answers.append((action, error, is_accepted))
            self.closed = self.closed or is_accepted
        if is_accepted:
            self.heard_at = monotonic()
        return is_accepted


class FaultyServers:
    """Both servers, with their faults and totals."""

    def __init__(self, seed: int) -> None:
        self._random, self._lock = Random(seed), Lock()
        self._is_faulty = True
        self.tokens: dict[str, WaitingToken] = {}
        self.fetched: Counter[str] = Counter()  # how often each file was sent completely
        self.calls = self.faults = 0
        self.files = self.states = ""  # host:port

    def calm(self) -> None:
        """Stop injecting faults."""
        self._is_faulty = False

    def _inject_fault(self, chance: float) -> bool:
        happens = self._is_faulty and self._random.random() < chance
        self.faults += happens
        return happens

    def serve_file(self, ask: Ask, wire: Wire) -> None:
        """Send the file /SIZE/NAME, or a fault."""
        sleep(self._random.uniform(0, 0.3))
        _, size, name = ask.path.split("/", 2)
        if self._inject_fault(0.06):
            status("503 Service Unavailable", body=b"later")(ask, wire)
        elif self._inject_fault(0.03):
            wire.reset()
        elif name.startswith(MISSING):
            status("404 Not Found", body=b"no such file")(ask, wire)
        elif self._send_content(make_content(name, int(size)), ask, wire):
            with self._lock:
                self.fetched[ask.path] += 1

    def _send_content(self, data: bytes, ask: Ask, wire: Wire) -> bool:
        """Send a file, or its rest if it is still the same. Return whether it was all sent."""
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        start = ask.start if ask.headers.get("if-range") == tag else 0
        lines = [f"Content-Length: {len(data) - start}", f"ETag: {tag}"]
        if start:
            lines.append(f"Content-Range: bytes {start}-{len(data) - 1}/{len(data)}")
        if not start >= len(data) > 0:
            wire.head("206 Partial Content" if start else "200 OK", *lines)
            for position in range(start, len(data), CHUNK):
                if self._inject_fault(0.03):
                    break
                wire.send(data[position : position + CHUNK])
                sleep(self._random.uniform(0, 0.02))
            else:
                return True
        wire.reset()
        return False

    def serve_call(self, ask: Ask, wire: Wire) -> None:
        """Respond to a call to Step Functions."""
        with self._lock:
            self.calls += 1
        sleep(self._random.uniform(0, 0.02))
        if self._inject_fault(0.05):
            return _refuse("ThrottlingException", "slow down")(ask, wire)
        if self._inject_fault(0.04):
            return wire.reset()  # not processed, but the client cannot know
        action, arguments = ask.headers["x-amz-target"].rpartition(".")[2], json.loads(ask.body)
        with self._lock:
            token = self.tokens.get(arguments["taskToken"])
            is_accepted = token is not None and token.call(action, arguments.get("error", ""))
        if self._inject_fault(0.08):
            return wire.reset()  # processed, but the client cannot know
        if is_accepted:
            return status("200 OK", *_FIELDS, body=b"{}")(ask, wire)
        code = "InvalidToken" if token is None else "TaskTimedOut"
        return _refuse(code, "Task Timed Out: 'x'")(ask, wire)


_FIELDS = ("Content-Type: application/x-amz-json-1.0", "x-amzn-RequestId: 1")


def _refuse(code: str, message: str) -> Route:
    body = json.dumps({"__type": code, "message": message}).encode()
    return status("400 Bad Request", *_FIELDS, body=body)


@contextmanager
def run_servers(seed: int) -> Iterator[FaultyServers]:
    """Run both servers until the block ends."""
    faulty = FaultyServers(seed)
    with (
        LoopbackServer(otherwise=faulty.serve_file) as files,
        LoopbackServer(otherwise=faulty.serve_call) as states,
    ):
        faulty.files, faulty.states = files.origin, states.origin
        yield faulty
