"""Forks of a small process, for tests that need thousands of them.

The kernel copies the page tables of a process that forks, and then each page that it touches.
A process that runs tests has hundreds of megabytes, so a fork takes 30 ms of processor time.
The server has a tenth of that. It runs what it is sent in forks of itself, one at a time.
"""

import atexit
import gc
import os
import pickle
import socket
import subprocess
import sys
from functools import cache

from holdfast.core.version import read_version
from support.filesystem.crash import (
    Ending,
    Play,
    be_the_child,
    end_with_parent,
    listen,
    read_ending,
)

_MAX_BYTES = 65536
_INT_BYTES = 4


def run_in_small_child(play: Play, hangs_after_seconds: float = 60.0) -> Ending:
    """As run_in_child, with a play that can be pickled and a process that has only its imports.

    The server lives until this process ends.
    """
    server = _start_server(os.getpid())
    out, into = os.pipe()
    socket.send_fds(server, [pickle.dumps(play)], [into])
    os.close(into)
    output, ended = listen(out, _receive_int(server), hangs_after_seconds)
    return read_ending(_receive_int(server), output, ended)


@cache
def _start_server(pid: int) -> socket.socket:
    """Start the server of this process; a fork of it starts its own."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
    process = subprocess.Popen(
        [sys.executable, "-c", command], stdin=far, start_new_session=True
    )
    far.close()
    atexit.register(_end, process, near)
    return near


def _end(process: subprocess.Popen[bytes], server: socket.socket) -> None:
    server.shutdown(socket.SHUT_RDWR)  # also ends it if a fork of this process lives on
    process.wait()


def _receive_int(server: socket.socket) -> int:
    number = server.recv(_INT_BYTES)
    assert number, "the server of forks has ended; its error is above"
    return int.from_bytes(number, "little")


def serve() -> None:
    """Run plays in forks until the other side of standard input is closed."""
    read_version()  # here once, instead of in every fork
    client = socket.socket(fileno=0)
    while True:
        pickled, fds, _, _ = socket.recv_fds(client, _MAX_BYTES, 1)
        if not pickled:
            return
        play = pickle.loads(pickled)  # imports its module here, once for all forks
        gc.freeze()  # else a collection in a fork copies every page
        _send_int(client, pid := _fork(play, fds[0]))
        os.close(fds[0])
        _send_int(client, os.waitpid(pid, 0)[1])


def _fork(play: Play, into: int) -> int:
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        be_the_child(play, into)
    return pid


def _send_int(client: socket.socket, number: int) -> None:
    client.send(number.to_bytes(_INT_BYTES, "little"))
