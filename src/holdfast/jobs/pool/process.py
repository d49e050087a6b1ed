"""The pool's end of one worker process: start it, exchange frames with it, see it end.

It does not use `multiprocessing`, which would import the program's main module in every
worker and more than twice as much as a worker needs. No function in this module waits.
"""

import os
import pickle
import subprocess
import sys
from contextlib import suppress

from holdfast.core.errors import ConfigError
from holdfast.core.process.frames import MAX_FRAME_BYTES, Frames
from holdfast.core.process.process_group import (
    block_sigint,
    describe_exit,
    is_group_gone,
    kill_group,
)
from holdfast.jobs.pool import wire
from holdfast.jobs.pool.ports import HandlerFactory
from holdfast.jobs.pool.worker_main import OUT_OF_MEMORY

# The worker gets our module path, which may have a folder that only this program added.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[5:]; "
    "from holdfast.jobs.pool.worker_main import main; main()"
)


def pickle_factory(make_handler: HandlerFactory) -> bytes:
    """Return the pickled factory. Raises ConfigError if a worker could not load it."""
    try:
        factory = pickle.dumps(make_handler)
    except Exception as error:  # pickling an object can raise anything
        raise ConfigError(
            "the task handler cannot be sent to a worker process "
            f"({type(error).__name__}: {error}): use a function at the top of an importable "
            "module, or a partial of one"
        ) from None
    if len(factory) > MAX_FRAME_BYTES:
        raise ConfigError(
            f"the task handler has {len(factory):,} bytes when pickled, the limit is "
            f"{MAX_FRAME_BYTES:,}: let it load its data from a file"
        )
    return factory


class WorkerProcess:
    """One process, its pipes and its process group, for one thread.

    That thread must outlive the process, because Linux ends the process with the thread
    that started it.
    """

    def __init__(self, factory: bytes, slots: int, pulse_seconds: float) -> None:
        """Start the process. Raises OSError if no process can be started now."""
        child_ends, parent_ends = _open_pipes()
        try:
            self._process = _start_process(*child_ends)
        except BaseException:
            _close(*parent_ends)
            raise
        finally:
            _close(*child_ends)
        self.pid = self._process.pid
        self.messages, self.commands, self._sentinel = parent_ends
        for pipe in (self.messages, self.commands):
            os.set_blocking(pipe, False)
        self._frames = Frames(self.messages, self.commands)
        self._open = True
        self.send(wire.pack_start(slots, pulse_seconds))
        self.send(factory)

    # -- frames

    def read(self) -> bytes | None:
        """Return the next frame, or None if there is none yet.

        Raises EOFError if there will be no more.
        """
        return self._frames.read()

    def send(self, frame: bytes) -> None:
        """Send a frame without waiting; `unsent` says whether a part of it is buffered."""
        self.unsent = self._open and not self._frames.send(frame)

    def flush(self) -> None:
        """Send buffered bytes without waiting."""
        self.unsent = self._open and not self._frames.flush()

    def close_commands(self) -> None:
        """Close the pipe of commands, so that the process ends by itself."""
        if self._open:
            self._open = self.unsent = False
            os.close(self.commands)

    # -- ending

    def poll_exit(self) -> str | None:
        """Return how the process ended, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return "out of memory" if code == OUT_OF_MEMORY else describe_exit(code)

    def kill(self) -> None:
        """Kill the process and all that it started, at once."""
        if self._process.poll() is None:
            self._process.kill()  # it may be too young to have a process group
        kill_group(self.pid)

    def is_gone(self) -> bool:
        """Return whether the process and all that it started have ended. Call after `kill`."""
        return self._process.poll() is not None and is_group_gone(self.pid)

    def close(self) -> None:
        """Close the pipes. This is the last call."""
        self.close_commands()
        _close(self.messages, self._sentinel)


def _open_pipes() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the child's ends (commands, messages, sentinel) and ours.

    Ours are in the order messages, commands, sentinel.
    """
    pipes: list[int] = []
    try:
        for _ in range(3):
            pipes += os.pipe()
    except OSError:
        _close(*pipes)
        raise
    commands, our_commands, our_messages, messages, sentinel, our_sentinel = pipes
    return (commands, messages, sentinel), (our_messages, our_commands, our_sentinel)


def _start_process(commands: int, messages: int, sentinel: int) -> "subprocess.Popen[bytes]":
    arguments = (os.getpid(), commands, messages, sentinel)
    with block_sigint():
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *map(str, arguments), *sys.path],
            stdin=subprocess.DEVNULL,
            pass_fds=(commands, messages, sentinel),
        )


def _close(*pipes: int) -> None:
    for pipe in pipes:
        with suppress(OSError):
            os.close(pipe)
