"""DynamoDB Local, Amazon's own server, which answers on the loopback only.

The server listens on all addresses and has no option against that. So it runs in a network
namespace of its own, which has nothing but a loopback. As a script, this file enters such a
namespace with a socket of the outside in its hand, and passes on what connects there.
"""

import asyncio
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

JAR = Path(sys.prefix) / "dynamodb-local" / "package" / "emulator" / "DynamoDBLocal.jar"
_INSIDE = ("127.0.0.1", 8000)
_START_SECONDS = 120.0
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1


_REFUSED = "DynamoDB Local needs a network namespace: "


# -- the test's side


class NoNamespace(Exception):
    """The server would be open to other machines, so it is not started."""


def why_not() -> str:
    """Return why it cannot run here, or nothing."""
    if not shutil.which("java"):
        return "DynamoDB Local needs Java, and there is no java on the PATH"
    if not JAR.exists():
        return f"DynamoDB Local is not installed: `make chaos` puts it at {JAR}"
    return ""


@contextmanager
def serving() -> Iterator[str]:
    """Yield its address.

    Raise NoNamespace where this user may not make one, and AssertionError if the server does
    not start for any other reason.
    """
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # to be killed with the server it starts
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        if said.startswith(_REFUSED):
            raise NoNamespace(said)
        assert said.startswith("http://"), f"DynamoDB Local does not start: {said}; see stderr"
        yield said
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


# -- the script


def _enter_namespace() -> None:
    """Leave the network for one that has nothing but a loopback."""
    libc = ctypes.CDLL(None, use_errno=True)
    user = 0 if os.geteuid() == 0 else _CLONE_NEWUSER
    if libc.unshare(_CLONE_NEWNET | user) != 0:
        sys.exit(print(_REFUSED + os.strerror(ctypes.get_errno())))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _start() -> "subprocess.Popen[bytes]":
    words = [
        "java",
        f"-Djava.library.path={JAR.parent / 'DynamoDBLocal_lib'}",
        "-jar",
        str(JAR),
    ]
    words += ["-inMemory", "-disableTelemetry", "-port", str(_INSIDE[1])]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=sys.stderr)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    inside_reader, inside_writer = await asyncio.open_connection(*_INSIDE)
    await asyncio.gather(_pass_on(reader, inside_writer), _pass_on(inside_reader, writer))


async def _until_it_answers(server: "subprocess.Popen[bytes]") -> None:
    while server.poll() is None:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(*_INSIDE)
            writer.close()
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"java ended with {server.returncode}")


async def _serve(outside: socket.socket) -> None:
    async with asyncio.timeout(_START_SECONDS):
        await _until_it_answers(_start())
    server = await asyncio.start_server(_connected, sock=outside)
    print("http://{}:{}".format(*outside.getsockname()), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    outside = socket.create_server(("127.0.0.1", 0), backlog=128)
    _enter_namespace()
    asyncio.run(_serve(outside))
