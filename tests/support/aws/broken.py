"""Broken responses, as routes of a LoopbackServer. None says what became of the call."""

import gzip
import json
from collections.abc import Callable
from threading import Event

from support.http_server import Ask, Route, Wire, redirect, status

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\n"
_HTML = b"<html><body><h1>Please sign in to the network</h1></body></html>"


def send_bytes(data: bytes, then: Callable[[Wire], None] = Wire.close) -> Route:
    """Send these bytes, whatever is asked, and then close the connection."""

    def route(ask: Ask, wire: Wire) -> None:
        wire.send(data)
        then(wire)

    return route


def _half_close(ask: Ask, wire: Wire) -> None:
    wire.half_close()
    wire.hang()


def close_after(respond: Route) -> Route:
    """Respond, and close the connection without saying so."""

    def route(ask: Ask, wire: Wire) -> None:
        respond(ask, wire)
        wire.close()

    return route


def drip(ask: Ask, wire: Wire) -> None:
    """Send a correct response so slowly that each byte comes in time, and the last late."""
    wire.send(_HEAD + b"Content-Length: 1000\r\n\r\n{}")
    for _ in range(998):  # for 50 s, unless the client closes
        Event().wait(0.05)
        wire.send(b" ")


def drip_head(ask: Ask, wire: Wire) -> None:
    """Send the head as slowly."""
    wire.send(_HEAD)
    for _ in range(998):
        Event().wait(0.05)
        wire.send(b"X: y\r\n")


# The connection breaks, so no client can know more.
CONNECTIONS: dict[str, Route] = {
    "closed": lambda ask, wire: wire.close(),
    "reset": lambda ask, wire: wire.reset(),
    "half closed": _half_close,
    "cut in the body": send_bytes(_HEAD + b'Content-Length: 100\r\n\r\n{"a"'),
    "cut in a chunk": send_bytes(_HEAD + b'Transfer-Encoding: chunked\r\n\r\n50\r\n{"a"'),
    "cut before the last chunk": send_bytes(
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    ),
    "not HTTP": send_bytes(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"),
    "silent": lambda ask, wire: wire.hang(),
}

# What comes is no complete response of the service, but boto3 takes it for an empty one.
CONTENTS: dict[str, Route] = {
    "cut in the head": send_bytes(_HEAD),
    "cut after the head": send_bytes(_HEAD + b"\r\n"),
    "deep JSON": status("200 OK", body=b'{"a":' + b"[" * 100_000),
    "HTML": status("200 OK", "Content-Type: text/html", body=_HTML),
    "cut JSON": status("200 OK", body=b'{"Messages": [{"MessageId": "x'),
    "a JSON list": status("200 OK", body=b'[{"MessageId": "x"}]'),
    "a JSON text": status("200 OK", body=b'"x"'),
    "not UTF-8": status("200 OK", body=b'{"QueueUrl": "\xff\xfe"}'),
    "gzip": status(
        "200 OK", "Content-Encoding: gzip", body=gzip.compress(json.dumps({}).encode())[:-9]
    ),
}

REDIRECTS = {
    line: redirect("/elsewhere", line)
    for line in ("301 Moved Permanently", "302 Found", "307 Temporary Redirect", "308 Moved")
}
