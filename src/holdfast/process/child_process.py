"""One child process and its life: start it, exchange frames with it, end it, and reap it.

    STARTING ──▶ READY ──▶ LEAVING     asked to end: by the end of its commands, or by SIGTERM
        └──────────┴──────────┴──────▶ ENDING ──▶ GONE

`step` runs one pass of this and never waits, so one thread can supervise many children. A
thread with one child calls `wait` in between. What a child was doing may be done again only
when it is GONE, because until then it may still act.

It does not use `multiprocessing`, which would import the program's main module in every child
and more than twice as much as a child needs.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from itertools import islice
from math import inf
from select import POLLIN, POLLOUT, poll
from typing import Any

from holdfast.lease.clock import Clock
from holdfast.process.child_main import STACKS_SIGNAL
from holdfast.process.frames import (
    BROKEN,
    READY,
    BrokenFrame,
    Frames,
    Program,
    unpack_broken,
)
from holdfast.process.liveness import LivenessLimits
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

_MAX_FRAMES = 100  # of a child that never stops sending, before anything else is checked
_START_TIMEOUT_SECONDS = 120.0  # imports on a busy machine
_STACKS_SECONDS = 1.0  # to wait for a dump; a stopped process never writes one
_QUIET_SECONDS = 0.1  # after the start of a dump, when it counts as complete
_MAX_STACKS_BYTES = 256 * 1024  # a hundred threads; a broken child might write forever
_KILL_TIMEOUT_SECONDS = 10.0  # after SIGKILL; only a wait in the kernel takes longer
_GROUP_TIMEOUT_SECONDS = 1.0  # where no process reaps orphans, a group never becomes empty

FrameHandler = Callable[[int, bytes], None]
"""Handles the number and the payload of a frame. Raises BrokenFrame if it is invalid."""


class ChildState(Enum):
    """The phase of a child's life."""

    STARTING = auto()
    READY = auto()
    LEAVING = auto()
    ENDING = auto()
    GONE = auto()


class ChildProcess:
    """One process, its pipes and its process group, for one thread.

    That thread must outlive the process, because Linux ends the process with the thread
    that started it.
    """

    state: ChildState

    def __init__(self, program: Program, limits: LivenessLimits, clock: Clock) -> None:
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
        self.reason: str | None = None  # why it was ended, unless it ended by itself
        self.broken: tuple[str, str] | None = None  # why it cannot load the user's code
        self.is_loading = True  # it imports user code and may report that it cannot
        self._commands, self._messages, self._control, self._stacks = parent_ends
        self.frames = Frames(self._messages, self._commands)
        self._readable = True  # no later frame can be trusted after an invalid one
        self._stack_dump = bytearray()
        self._terminate_at = inf
        self._limits = limits
        self._clock = clock
        self._move_to(ChildState.STARTING, _START_TIMEOUT_SECONDS)
        self.frames.send(0, b"%d" % len(start))
        for offset in range(0, len(start), _PART_BYTES):
            self.frames.send(0, start[offset : offset + _PART_BYTES])

    # -- exchanging frames

    def register(self, ready: poll) -> None:
        """Register for what the child sends and, if bytes are buffered, for room for them."""
        # The pipe of a child that is ENDING is at its end, so it would always be ready.
        if self.state is not ChildState.ENDING:
            ready.register(self._messages, POLLIN)
            if self.frames.unsent_bytes:
                ready.register(self._commands, POLLOUT)

    def send_control(self, record: bytes) -> None:
        """Send a record on the control pipe, which the child reads even while it works."""
        with suppress(OSError):  # it ended or does not read; other checks notice both
            os.write(self._control, record)

    # -- one pass

    def step(self, handle: FrameHandler) -> None:
        """Read frames, check the signs of life, and reap the process when it is dead.

        `handle` gets the frames of the program. If one is invalid, the process is killed.
        This never waits, and does nothing once the process is GONE.
        """
        if self.state is ChildState.GONE:
            return  # its pipes are closed, and their numbers may be those of other files
        has_read = self._read_frames(handle, _MAX_FRAMES)
        if has_read and self.state is ChildState.READY:
            self._since = self._clock.monotonic()  # every frame shows life
        self._check_life()
        if self.state is ChildState.ENDING and self._is_dead():
            # What it sent before its end counts; an incomplete frame is ignored.
            self._read_frames(handle, None)
            self._read_stacks()
            self.close_pipes()
            self.state = ChildState.GONE

    def _read_frames(self, handle: FrameHandler, max_frames: int | None) -> bool:
        """Read what there is, at most so many frames. Return whether there was one."""
        has_read = False
        if not self._readable:
            return False
        try:
            self.frames.flush()
            for number, frame in islice(iter(self.frames.read, None), max_frames):
                has_read = True
                self._handle_frame(number, frame, handle)
        except EOFError:
            self.end()  # it is dying, and its exit code will give the reason
        except BrokenFrame as error:
            self._readable = False
            self.end(f"its process sent an invalid frame: {error}")
        return has_read

    def _handle_frame(self, number: int, frame: bytes, handle: FrameHandler) -> None:
        if self.is_loading and frame[:1] == BROKEN:
            self.broken = unpack_broken(frame)
            self.end(f"it cannot load its code: {self.broken[0]}")
            return
        if frame == READY and self.state is ChildState.STARTING:
            self._move_to(ChildState.READY, self._limits.pulse_seconds)
        else:
            handle(number, frame)
        self.is_loading = False

    def _check_life(self) -> None:
        if self.poll_exit() is not None:
            self.end()
        elif self._clock.monotonic() - self._since >= self._max_seconds:
            match self.state:
                case ChildState.STARTING:
                    self.end(f"not ready after {self._max_seconds:g} s")
                case ChildState.READY:
                    self.terminate(
                        f"the worker process did not answer for {self._max_seconds:g} s"
                    )
                case ChildState.LEAVING:
                    self.end(f"did not end within {self._max_seconds:g} s")
        if self.state is ChildState.LEAVING:
            self._send_due_sigterm()

    def _send_due_sigterm(self) -> None:
        """Send SIGTERM after the stacks.

        If a system call were interrupted by both signals, it would be restarted, and the
        child would not notice SIGTERM.
        """
        now = self._clock.monotonic()
        if self._read_stacks():
            self._terminate_at = min(self._terminate_at, now + _QUIET_SECONDS)
        if now >= self._terminate_at:
            self._terminate_at = inf
            self._process.terminate()

    def extend_timeout(self, seconds: float) -> None:
        """Ignore a time in which the child was not supervised, or was not to send anything."""
        self._since = min(self._since + seconds, self._clock.monotonic())

    def wait(self, seconds: float) -> None:
        """Wait until there may be something to do, or until `seconds` passed."""
        if self.state is ChildState.ENDING:
            self._clock.sleep(0.001)
        else:
            ready = poll()
            self.register(ready)
            ready.poll(seconds * 1000)

    # -- ending

    def leave(self) -> None:
        """Let the process end by itself within the grace, because it gets no more commands."""
        self.frames.close()
        self._move_to(ChildState.LEAVING, self._limits.kill_grace_seconds)

    def terminate(self, reason: str) -> None:
        """Have a process that is READY write its stacks, then end within the grace.

        The stacks are written even if the interpreter is stuck. Then SIGTERM lets the
        `finally` blocks of the user's code run.
        """
        if self.state is ChildState.READY:
            self.reason = reason
            self._process.send_signal(STACKS_SIGNAL)
            grace_seconds = _STACKS_SECONDS + self._limits.kill_grace_seconds
            self._move_to(ChildState.LEAVING, grace_seconds)
            self._terminate_at = self._since + _STACKS_SECONDS

    def end(self, reason: str | None = None) -> None:
        """Kill the process and all that it started, at once. Calling this twice is safe."""
        if self.state not in (ChildState.ENDING, ChildState.GONE):
            self.reason = self.reason or reason
            self._process.kill()  # it may be too young to have a process group
            kill_group(self.pid)
            self._move_to(ChildState.ENDING, _KILL_TIMEOUT_SECONDS)

    def destroy(self) -> str | None:
        """Kill the process, and wait until it is GONE with all that it started.

        Return how it ended, or None if it cannot be killed.
        """
        self.end()
        return self.wait_until_gone()

    def wait_until_gone(self) -> str | None:
        """Wait until the process is GONE, and ignore its frames. Return like `destroy`."""
        while self.state is not ChildState.GONE:
            self.wait(0.02)
            self.step(lambda number, frame: None)
        return self.poll_exit()

    def poll_exit(self) -> str | None:
        """Return how the process ended, or None while it exists."""
        code = self._process.poll()
        return None if code is None else describe_exit(code)

    @property
    def stacks(self) -> str:
        """The stacks that the child wrote while it ended, also those of a crash."""
        return self._stack_dump.decode(errors="replace")

    def _read_stacks(self) -> bool:
        """Read the stacks that the child has written. Return whether there are any."""
        with suppress(BlockingIOError):
            while len(self._stack_dump) < _MAX_STACKS_BYTES:
                if not (chunk := os.read(self._stacks, 1 << 16)):
                    break
                self._stack_dump += chunk
        return bool(self._stack_dump)

    def _is_dead(self) -> bool:
        """Return whether no part of the killed process can act any more.

        A process that hangs in the kernel for so long will never return to its code.
        """
        seconds = self._clock.monotonic() - self._since
        if self.poll_exit() is None:
            return seconds >= self._max_seconds
        return is_group_gone(self.pid) or seconds >= _GROUP_TIMEOUT_SECONDS

    def _move_to(self, state: ChildState, max_seconds: float) -> None:
        self.state = state
        self._since, self._max_seconds = self._clock.monotonic(), max_seconds

    def close_pipes(self) -> None:
        """Close our ends of the pipes, as the end of this process would."""
        self.frames.close()
        _close(self._messages, self._control, self._stacks)
        self._control = -1  # so that no record is written to another file of this number


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
