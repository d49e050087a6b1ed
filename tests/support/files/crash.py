"""Child processes of a test, which may be killed."""

import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO

PR_SET_PDEATHSIG = 1


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child process ended, and its output."""

    killed: bool
    output: str


Play = Callable[[Callable[[str], None]], None]


def run_in_child(play: Play, hangs_after_seconds: float = 60.0) -> Ending:
    """Run `play(say)` in a fork of this process, which has its imports, and wait for its end.

    A child that raises or hangs fails the calling test, with its traceback in the error.
    """
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        end_with_parent()
        be_the_child(play, into)
    os.close(into)
    output, ended = listen(out, pid, hangs_after_seconds)
    _, status = os.waitpid(pid, 0)
    return read_ending(status, output, ended)


def listen(out: int, pid: int, seconds: float) -> tuple[str, bool]:
    """Return the child's output, and whether it ended; kill a child that is silent too long."""
    with os.fdopen(out, "rb", buffering=0) as pipe:
        output, ended = _read_all(pipe, seconds)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    return output, ended


def read_ending(status: int, output: str, ended: bool) -> Ending:
    """Return how the child ended, or fail the calling test if it raised or was silent."""
    assert ended, f"the child hangs; its output is {output!r}"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return Ending(True, output)
    assert status == 0, f"the child failed:\n{output}"
    return Ending(False, output)


def end_with_parent() -> None:
    """In a child: have the kernel kill it when the test's process ends, even while frozen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _read_all(pipe: FileIO, seconds: float) -> tuple[str, bool]:
    """Read until the child's end of the pipe is closed, because it ended or was killed."""
    output = b""
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    while waiting.poll(seconds * 1000):
        if not (word := pipe.read(65536)):
            return output.decode(), True
        output += word
    return output.decode(), False


def be_the_child(play: Play, into: int) -> None:
    status = 1
    try:
        play(lambda word: _write(into, word))
        status = 0
    except BaseException:
        _write(into, traceback.format_exc())
    finally:
        os._exit(status)  # it must not return into pytest


def _write(fd: int, word: str) -> None:
    os.write(fd, word.encode())
