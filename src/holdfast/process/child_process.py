"""The parent's end of one child process: start it, exchange frames with it, and end it.

It does not use `multiprocessing`, which would import the program's main module in every child
and more than twice as much as a child needs. Unless a function says that it waits, it does not.
"""

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from select import POLLIN, POLLOUT, poll
from typing import Any

from holdfast.lease.clock import Clock
from holdfast.process.child_main import STACKS_SIGNAL
from holdfast.process.frames import Frames, Program
from holdfast.process.process_group import (
    block_sigint,
    describe_exit,
    is_group_gone,
    kill_group,
)

# The child gets our module path, which may have a folder that only this program added.
_BOOT = (
    "import sys; sys.path[:] = sys.argv[7:]; "
    "from holdfast.process.child_main import main; main()"
)
_PART_BYTES = 1 << 20

_STACKS_SECONDS = 1.0  # to wait for a dump; a stopped process never writes one
_QUIET_SECONDS = 0.1  # without output, after which a dump counts as complete
_MAX_STACKS_BYTES = 256 * 1024  # a hundred threads; a broken child might write forever
_KILL_TIMEOUT_SECONDS = 10.0  # after SIGKILL; only a wait in the kernel takes longer
_GROUP_TIMEOUT_SECONDS = 1.0  # where no process reaps orphans, a group never becomes empty


class ChildProcess:
    """One process, its pipes and its process group, for one thread.

    That thread must outlive the process, because Linux ends the process with the thread
    that started it.
    """

    def __init__(self, program: Program, clock: Clock) -> None:
        """Start the process. Raises OSError if no process can be started now."""
        start = pickle.dumps((program, _describe_main() if program.imports_main else None))
        child_ends, parent_ends = _open_pipes()
        try:
            self._process = _start_process(program.module, child_ends)
        except BaseException:
            _close(*parent_ends)
            raise
        finally:
            _close(*child_ends)
        for pipe in parent_ends:
            os.set_blocking(pipe, False)
        self.pid = self._process.pid
        self._commands, self._messages, self._control, self._stacks = parent_ends
        self._commands_open = True
        self._frames = Frames(self._messages, self._commands)
        self._clock = clock
        self._killed_at = 0.0
        self.send(0, b"%d" % len(start))
        for offset in range(0, len(start), _PART_BYTES):
            self.send(0, start[offset : offset + _PART_BYTES])

    # -- exchanging frames

    def register(self, ready: poll) -> None:
        """Register for what the child sends and, if bytes are buffered, for room for them."""
        ready.register(self._messages, POLLIN)
        if self.unsent_bytes:
            ready.register(self._commands, POLLOUT)

    def wait(self, seconds: float) -> None:
        """Wait until there is something to read or to write, or until `seconds` passed."""
        ready = poll()
        self.register(ready)
        ready.poll(seconds * 1000)

    def read(self) -> tuple[int, bytes] | None:
        """Return the number and the payload of the next frame, or None if there is none yet.

        Also sends what is buffered. Raises EOFError if there will be no more frames, and
        BrokenFrame if a frame is too long or too short.
        """
        self.flush()
        return self._frames.read()

    def send(self, number: int, frame: bytes) -> None:
        """Send a frame. What the child does not read now stays buffered until `read`.

        Raises MessageTooLarge, and sends nothing, if the frame is too long.
        """
        if self._commands_open:
            self._frames.send(number, frame)

    def buffer(self, number: int, frame: bytes) -> None:
        """Keep a frame until `flush`. Raises MessageTooLarge like `send`."""
        if self._commands_open:
            self._frames.buffer(number, frame)

    def flush(self) -> None:
        """Send what is buffered, as far as the child reads it now."""
        if self.unsent_bytes:
            self._frames.flush()

    @property
    def unsent_bytes(self) -> int:
        """The number of buffered bytes."""
        return self._frames.unsent_bytes if self._commands_open else 0

    def send_control(self, record: bytes) -> None:
        """Send a record on the control pipe, which the child reads even while it works."""
        with suppress(OSError):  # it ended or does not read; other checks notice both
            os.write(self._control, record)

    def close_commands(self) -> None:
        """Close the pipe of commands, so that the process ends by itself."""
        if self._commands_open:
            self._commands_open = False
            os.close(self._commands)

    # -- watching

    def poll_exit(self) -> str | None:
        """Return how the process ended, or None while it exists."""
        code = self._process.poll()
        return None if code is None else describe_exit(code)

    def wait_until_dead(self, seconds: float) -> str | None:
        """Wait at most `seconds` for the process to end. Return how it ended, or None."""
        until = self._clock.monotonic() + seconds
        pause = 0.001
        while (
            exit_text := self.poll_exit()
        ) is None and self._clock.monotonic() + pause <= until:
            self._clock.sleep(pause)
            pause = min(pause * 2, 0.02)
        return exit_text

    def dump_stacks(self) -> str:
        """Wait for the stacks of all threads, even if the child's interpreter is stuck."""
        self._process.send_signal(STACKS_SIGNAL)
        return self.read_stacks(_STACKS_SECONDS)

    def read_stacks(self, seconds: float = 0.0) -> str:
        """Return the stacks that the child wrote, also those of a crash.

        Waits at most so many seconds for them.
        """
        ready = poll()
        ready.register(self._stacks, POLLIN)
        text = bytearray()
        until = self._clock.monotonic() + seconds
        while len(text) < _MAX_STACKS_BYTES and ready.poll(
            max(0.0, until - self._clock.monotonic()) * 1000
        ):
            if not (chunk := os.read(self._stacks, 1 << 16)):
                break
            text += chunk
            until = min(until, self._clock.monotonic() + _QUIET_SECONDS)
        return text.decode(errors="replace")

    # -- ending

    def terminate(self) -> None:
        """Send SIGTERM, so that the child's `finally` blocks run."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill the process and all that it started, at once."""
        self._process.kill()  # it may be too young to have a process group
        kill_group(self.pid)
        self._killed_at = self._clock.monotonic()

    def is_gone(self) -> bool:
        """Return whether no part of the process can act any more. Call after `kill`.

        A process that hangs in the kernel for so long will never return to its code.
        """
        seconds = self._clock.monotonic() - self._killed_at
        if self.poll_exit() is None:
            return seconds >= _KILL_TIMEOUT_SECONDS
        return is_group_gone(self.pid) or seconds >= _GROUP_TIMEOUT_SECONDS

    def close(self) -> None:
        """Close the pipes. This is the last call."""
        self.close_commands()
        _close(self._messages, self._control, self._stacks)

    def destroy(self) -> str | None:
        """Kill the process, wait until it is gone with all that it started, and close it.

        Return how it ended, or None if it cannot be killed.
        """
        self.kill()
        while not self.is_gone():
            self._clock.sleep(0.001)
        self.close()
        return self.poll_exit()


def _describe_main() -> dict[str, Any]:
    """Return what a child needs to import our main module. See `child_main`.

    Raises RuntimeError if this process is a child that is doing so itself.
    """
    from multiprocessing import spawn

    data: dict[str, Any] = spawn.get_preparation_data("holdfast-child")
    return data | {"authkey": bytes(data["authkey"])}  # only `multiprocessing` may pickle it


def _open_pipes() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the child's ends and ours, in the order commands, messages, control, stacks."""
    pipes: list[tuple[int, int]] = []
    try:
        # Two one-way pipes are twice as fast as one duplex pipe.
        for _ in range(4):
            pipes.append(os.pipe())
    except OSError:
        _close(*(end for pipe in pipes for end in pipe))
        raise
    commands, messages, control, stacks = pipes
    child_ends = (commands[0], messages[1], control[0], stacks[1])
    return child_ends, (commands[1], messages[0], control[1], stacks[0])


def _start_process(module: str, pipes: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    arguments = (*map(str, (os.getpid(), *pipes)), module, *sys.path)
    with block_sigint():
        return subprocess.Popen(
            [sys.executable, *flags, "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=pipes,
        )


def _close(*pipes: int) -> None:
    for pipe in pipes:
        with suppress(OSError):
            os.close(pipe)
