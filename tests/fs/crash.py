"""SIGKILL at any file system call, in a process of its own."""

import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from typing import Any

from fs.watched import WatchedFs

CHANGING = frozenset(
    {
        "write",
        "rename",
        "link",
        "symlink",
        "unlink",
        "mkdir",
        "rmdir",
        "utime",
        "fsync",
        "chmod",
        "fchmod",
    }
)


PR_SET_PDEATHSIG = 1


class CrashingFs(WatchedFs):
    """Once armed, counts the calls; kills its own process before number `kill_at`.

    With `changes_only` just those count that change what is on the disk: a kill before
    any other call leaves what a kill before the next of them leaves.
    """

    def __init__(
        self,
        server_time: Callable[[], float],
        kill_at: int | None = None,
        *,
        changes_only: bool = False,
    ) -> None:
        super().__init__(server_time)
        self._kill_at = kill_at
        self._changes_only = changes_only
        self.armed = False
        self.count = 0

    def call(self, name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.armed and (not self._changes_only or changes(name, args)):
            self.count += 1
            if self.count == self._kill_at:
                die()
        return real(*args, **kwargs)


def changes(name: str, args: tuple[Any, ...]) -> bool:
    return name in CHANGING or (name == "open" and bool(args[1] & os.O_CREAT))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended, and what it said before."""

    killed: bool
    said: str


Play = Callable[[Callable[[str], None]], None]


def in_a_child(play: Play, hangs_after_seconds: float = 60.0) -> Ending:
    """Run `play(say)` in a fork of this warm process and wait for its end.

    A child that raises or hangs fails the test that asked; its traceback is in the error.
    """
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        end_with_parent()
        _be_the_child(play, into)
    os.close(into)
    with os.fdopen(out, "rb", buffering=0) as pipe:
        said, ended = _listen(pipe, hangs_after_seconds)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert ended, f"the child hangs; it said {said!r}"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return Ending(True, said)
    assert status == 0, f"the child failed:\n{said}"
    return Ending(False, said)


def end_with_parent() -> None:
    """In a child: be killed when the test's process ends, even while frozen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _listen(pipe: FileIO, seconds: float) -> tuple[str, bool]:
    """Until the child's end of the pipe is closed, by its end or by its death."""
    said = b""
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    while waiting.poll(seconds * 1000):
        if not (word := pipe.read(65536)):
            return said.decode(), True
        said += word
    return said.decode(), False


def _be_the_child(play: Play, into: int) -> None:
    status = 1
    try:
        play(lambda word: _write(into, word))
        status = 0
    except BaseException:
        _write(into, traceback.format_exc())
    finally:
        os._exit(status)  # never back into pytest


def _write(fd: int, word: str) -> None:
    os.write(fd, word.encode())
