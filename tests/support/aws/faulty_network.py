"""A network that fails as a seed decides, between a client and a service.

Each request may be lost before it is executed, or its response may be lost, cut or replaced
after it was executed. The service behind it keeps the truth, so that a test can compare it with
what the clients believe.
"""

import http.client
from collections import Counter
from collections.abc import Callable
from random import Random
from threading import Lock
from urllib.parse import urlsplit

from support.aws.broken import close_after
from support.aws.responses import Response, make_query_error
from support.http_server import Ask, Wire

Service = Callable[[Ask], Response]


class FaultyNetwork:
    """A route of a LoopbackServer that lets a service execute each request, or not."""

    def __init__(self, execute: Service, random: Random) -> None:
        self.fault_share = 0.0
        self.faults: Counter[str] = Counter()
        self._execute = execute
        self._random = random
        self._lock = Lock()

    def __call__(self, ask: Ask, wire: Wire) -> None:
        fault = self._choose_fault()
        if fault in _BEFORE:
            _BEFORE[fault](ask, wire)
        else:
            _AFTER[fault](self._execute(ask), ask, wire)

    def _choose_fault(self) -> str:
        with self._lock:
            if self._random.random() >= self.fault_share:
                return "none"
            fault = FAULTS[self.faults.total() % len(FAULTS)]  # so that each kind happens
            self.faults[fault] += 1
            return fault


def forward_to(url: str) -> Service:
    """Return a service that sends each request on to a server."""
    server = urlsplit(url)

    def execute(ask: Ask) -> Response:
        connection = http.client.HTTPConnection(server.hostname or "", server.port, timeout=60)
        headers = {**ask.headers, "connection": "close"}
        connection.request(ask.method, ask.path, ask.body, headers)
        response = connection.getresponse()
        return Response(f"{response.status} {response.reason}", response.read())

    return execute


def _truncate(response: Response, ask: Ask, wire: Wire) -> None:
    wire.head("200 OK", f"Content-Length: {len(response.body) + 100}")
    wire.send(response.body)
    wire.close()


_BEFORE: dict[str, Callable[[Ask, Wire], None]] = {
    "lost request": lambda ask, wire: wire.reset(),
    "closed": lambda ask, wire: wire.close(),
    "a portal that says OK": Response("200 OK", b"<html>Please sign in"),
    "throttled": make_query_error("com.amazonaws#RequestThrottled", "RequestThrottled"),
}
_AFTER: dict[str, Callable[[Response, Ask, Wire], None]] = {
    "none": lambda response, ask, wire: response(ask, wire),
    "lost response": lambda response, ask, wire: wire.reset(),
    "closed without a response": lambda response, ask, wire: wire.close(),
    "truncated": _truncate,
    "closed while idle": lambda response, ask, wire: close_after(response)(ask, wire),
    "HTML": lambda response, ask, wire: Response("502 Bad Gateway", b"<html>proxy")(ask, wire),
    "HTML that says OK": lambda response, ask, wire: Response("200 OK", b"<html>hi")(ask, wire),
}
FAULTS = [*_BEFORE, *(name for name in _AFTER if name != "none")]
