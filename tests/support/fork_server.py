"""Forks of a small process, for tests that need thousands of them.

The kernel copies the page tables of a process that forks, and then each page that it touches.
A process that runs tests has hundreds of megabytes, so a fork takes 30 ms of processor time.
The server has a tenth of that. It runs what it is sent in forks of itself.

A request with a pipe is a play to fork, and is answered with the pid. One without is a pid to
wait for, and is answered with its status, once it has ended or is stopped.
"""

import atexit
import gc
import os
import pickle
import socket
import subprocess
import sys
from functools import cache

from holdfast.version import read_version
from support.files.crash import (
    Ending,
    Play,
    be_the_child,
    end_with_parent,
    listen,
    read_ending,
)

_MAX_BYTES = 65536
_INT_BYTES = 4
_EOF_SECONDS = 60.0  # until a pipe is closed whose process has ended


def run_in_small_child(play: Play, hangs_after_seconds: float = 60.0) -> Ending:
    """As run_in_child, with a play that can be pickled and a process that has only its imports.

    The server lives until this process ends.
    """
    child = SmallChild(play)
    output, ended = listen(child.out, child.pid, hangs_after_seconds)
    return read_ending(child.wait(), output, ended)


class SmallChild:
    """A play in a fork of the server. It may stop itself, and others run meanwhile."""

    def __init__(self, play: Play) -> None:
        self._server = _start_server(os.getpid())
        self.out, into = os.pipe()
        socket.send_fds(self._server, [pickle.dumps(play)], [into])
        os.close(into)
        self.pid = _receive_int(self._server)

    def wait(self) -> int:
        """Wait until it has ended or is stopped, and return its status."""
        _send_int(self._server, self.pid)
        return _receive_int(self._server)

    def wait_for_stop(self) -> Ending | None:
        """Wait until it is stopped, or return how it ended."""
        status = self.wait()
        if os.WIFSTOPPED(status):
            return None
        return read_ending(status, *listen(self.out, self.pid, _EOF_SECONDS))


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
    """Answer requests until the other side of standard input is closed."""
    read_version()  # here once, instead of in every fork
    client = socket.socket(fileno=0)
    while True:
        request, fds, _, _ = socket.recv_fds(client, _MAX_BYTES, 1)
        if not request:
            return
        if fds:
            _send_int(client, _fork(request, fds[0]))
        else:
            pid = int.from_bytes(request, "little")
            _send_int(client, os.waitpid(pid, os.WUNTRACED)[1])


def _fork(pickled: bytes, into: int) -> int:
    play = pickle.loads(pickled)  # imports its module here, once for all forks
    gc.freeze()  # else a collection in a fork copies every page
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        be_the_child(play, into)
    os.close(into)
    return pid


def _send_int(to: socket.socket, number: int) -> None:
    to.send(number.to_bytes(_INT_BYTES, "little"))
