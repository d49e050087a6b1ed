"""Run a server that would listen on all addresses so that only this machine reaches it.

    with run_isolated([java, ...], port=8000) as server:
        boto3.client("dynamodb", endpoint_url=server.url)

Some servers have no option for that. They run in their own network namespace, which has only a
loopback interface. As a script, this file opens a listening socket outside, enters such a
namespace, starts the server there, and forwards connections to it.
"""

import asyncio
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

_LOOPBACK = "127.0.0.1"
_START_SECONDS = 180.0
_UNAVAILABLE = "no network namespace can be made: "
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1


# -- the test's side


@dataclass(frozen=True, slots=True)
class IsolatedServer:
    """A running server and its address on this machine."""

    url: str
    process: "subprocess.Popen[str]"


@contextmanager
def run_isolated(command: Sequence[str], port: int, **options: Any) -> Iterator[IsolatedServer]:
    """Run the command, which listens on `port` inside the namespace, until the block ends.

    It inherits standard input and error. The test is skipped if this user may not create one.
    """
    import pytest  # here, because this file is also a script

    process = subprocess.Popen(
        [sys.executable, __file__, str(port), *command],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # it is killed with the server
        **options,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if line.startswith(_UNAVAILABLE):
            pytest.skip(line)
        assert line.startswith("http://"), f"{command[0]} does not start; see stderr"
        yield IsolatedServer(line, process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


# -- the script


def _enter_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    user = 0 if os.geteuid() == 0 else _CLONE_NEWUSER
    if libc.unshare(_CLONE_NEWNET | user) != 0:
        sys.exit(print(_UNAVAILABLE + os.strerror(ctypes.get_errno())))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


async def _serve(outside: socket.socket, port: int, command: Sequence[str]) -> None:
    inside = subprocess.Popen(command, stdout=sys.stderr, close_fds=False)
    async with asyncio.timeout(_START_SECONDS):
        await _wait_until_ready(port, inside)

    async def handle_connection(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        from_inside, to_inside = await asyncio.open_connection(_LOOPBACK, port)
        await asyncio.gather(_forward(reader, to_inside), _forward(from_inside, writer))

    server = await asyncio.start_server(handle_connection, sock=outside)
    print("http://{}:{}".format(*outside.getsockname()), flush=True)
    await server.serve_forever()


async def _wait_until_ready(port: int, server: "subprocess.Popen[bytes]") -> None:
    while server.poll() is None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(_LOOPBACK, port)
            writer.close()
            return
        await asyncio.sleep(0.1)
    sys.exit(1)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    outside = socket.create_server((_LOOPBACK, 0), backlog=128)
    _enter_namespace()
    asyncio.run(_serve(outside, int(sys.argv[1]), sys.argv[2:]))
