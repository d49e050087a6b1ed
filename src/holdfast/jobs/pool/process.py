"""The pool's hold on one worker process: start it, talk to it, see it end.

Not by `multiprocessing`: that would import the program's main module in every worker, and
more than twice of what is needed. Nothing in here ever waits.
"""

import os
import pickle
import subprocess
import sys
from contextlib import suppress

from holdfast.core.errors import ConfigError
from holdfast.core.process.frames import MAX_FRAME_BYTES, Frames
from holdfast.core.process.process_group import born_deaf, death_of, group_is_gone, kill_group
from holdfast.jobs.pool import wire
from holdfast.jobs.pool.ports import WorkFactory
from holdfast.jobs.pool.worker_main import OUT_OF_MEMORY

# It finds modules where we do: a folder that only this program has on its path included.
_PROGRAM = "import sys; sys.path[:] = sys.argv[5:]; from holdfast.jobs.pool.worker_main import main; main()"


def pickled(make_work: WorkFactory) -> bytes:
    """The factory as a worker process can find it. Raises ConfigError when it cannot."""
    try:
        factory = pickle.dumps(make_work)
    except Exception as error:  # whatever the object does when pickled
        raise ConfigError(
            f"the work cannot be sent to a worker process ({type(error).__name__}: {error}): "
            "use a function at the top of an importable module, or a partial of one"
        ) from None
    if len(factory) > MAX_FRAME_BYTES:
        raise ConfigError(
            f"the work is {len(factory):,} bytes when pickled, the limit is "
            f"{MAX_FRAME_BYTES:,}: let it load its data from a file"
        )
    return factory


class WorkerProcess:
    """One process, its pipes and its process group. For one thread, which must live on:
    Linux ends the process with the thread that started it."""

    def __init__(self, factory: bytes, slots: int, pulse_seconds: float) -> None:
        """Raises OSError when no process can be started now."""
        theirs, ours = _pipes()
        try:
            self._process = _started(*theirs)
        except BaseException:
            _close(*ours)
            raise
        finally:
            _close(*theirs)
        self.pid = self._process.pid
        self.answers, self.orders, self._lifeline = ours
        for pipe in (self.answers, self.orders):
            os.set_blocking(pipe, False)
        self._frames = Frames(self.answers, self.orders)
        self._open = True
        self.send(wire.pack_start(slots, pulse_seconds))
        self.send(factory)

    # -- talking

    def read(self) -> bytes | None:
        """The next frame, None when there is none yet. EOFError: there will be no more."""
        return self._frames.read()

    def send(self, frame: bytes) -> None:
        """Never waits for a worker that does not read: `unsent` says whether it did."""
        self.unsent = self._open and not self._frames.send(frame)

    def flush(self) -> None:
        self.unsent = self._open and not self._frames.flush()

    def hang_up(self) -> None:
        """No more orders: it ends by itself."""
        if self._open:
            self._open = self.unsent = False
            os.close(self.orders)

    # -- ending

    def death(self) -> str | None:
        """How it died; None while it lives."""
        code = self._process.poll()
        if code is None:
            return None
        return "out of memory" if code == OUT_OF_MEMORY else death_of(code)

    def kill(self) -> None:
        """Kill it and all it started, at once."""
        if self._process.poll() is None:
            self._process.kill()  # it may be too young to have a group
        kill_group(self.pid)

    def gone(self) -> bool:
        """Whether neither it nor anything it started is left. Ask after `kill`."""
        return self._process.poll() is not None and group_is_gone(self.pid)

    def let_go(self) -> None:
        """Close the pipes. The last call."""
        self.hang_up()
        _close(self.answers, self._lifeline)


def _pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Their ends: orders, answers, lifeline; ours: answers, orders, lifeline."""
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe()
    except OSError:
        _close(*made)
        raise
    orders, our_orders, our_answers, answers, lifeline, our_lifeline = made
    return (orders, answers, lifeline), (our_answers, our_orders, our_lifeline)


def _started(orders: int, answers: int, lifeline: int) -> "subprocess.Popen[bytes]":
    words = (os.getpid(), orders, answers, lifeline)
    with born_deaf():
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *map(str, words), *sys.path],
            stdin=subprocess.DEVNULL,
            pass_fds=(orders, answers, lifeline),
        )


def _close(*pipes: int) -> None:
    for pipe in pipes:
        with suppress(OSError):
            os.close(pipe)
