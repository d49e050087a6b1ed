"""A Step Functions in a separate process that accepts every callback after 20 ms."""

import asyncio
import multiprocessing
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from tools import listeners

ANSWER_SECONDS = 0.020
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nx-amzn-RequestId: 1\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)


class Callbacks(asyncio.Protocol):
    """The part of HTTP that a client needs for one request after another."""

    def __init__(self) -> None:
        self._got = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each complete request."""
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        if end and len(body) >= _length(head):
            self._got = body[_length(head) :]
            asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._answer)

    def _answer(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_ANSWER)


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0] or 0)


def serve(answer: Connection) -> None:
    """Send the address, then serve until killed."""
    asyncio.run(_serve(answer))


async def _serve(answer: Connection) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    server = await asyncio.get_running_loop().create_server(Callbacks, sock=listening)
    answer.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
    await server.serve_forever()


@contextmanager
def serving(target: Callable[[Connection], None] = serve) -> Iterator[str]:
    """Run a server until the block is left, and yield its address."""
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    server = spawn.Process(target=target, args=(sender,), daemon=True)
    server.start()
    try:
        assert receiver.poll(60), "the server did not start"
        listeners.assert_loopback_only()
        yield receiver.recv()
    finally:
        server.kill()
        server.join()
