"""One child process of a worker: start it, exchange frames with it, and end it."""

import atexit
import multiprocessing
import os
import pickle
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from select import POLLIN, POLLOUT, poll
from threading import Lock
from typing import Any

from holdfast.core.clock import Clock
from holdfast.core.errors import ConfigError, HandlerNotFound
from holdfast.core.lease.lease import Lease
from holdfast.core.process.frames import MAX_FRAME_BYTES, BrokenFrame, Frames
from holdfast.core.process.process_group import (
    block_sigint,
    describe_exit,
    is_group_gone,
    kill_group,
)
from holdfast.core.queue.message import MessageCodec, QueueMessage
from holdfast.core.worker import child_main, child_wire
from holdfast.core.worker.handler import Handler, get_handler_name

_spawn = multiprocessing.get_context("spawn")
_start_lock = Lock()

_STACKS_SECONDS = 1.0  # to wait for a dump; a stopped process never writes one
_QUIET_SECONDS = 0.1  # without output, after which a dump counts as complete
_DEATH_SECONDS = 10.0  # after SIGKILL; only a wait in the kernel takes longer
_GROUP_SECONDS = 1.0  # for the other processes of its group
_MAX_STACKS_BYTES = 256 * 1024  # a hundred threads; a broken child might write forever


def pickle_handler(handler: Handler) -> bytes:
    """Pickle the handler by its name. Raises ConfigError if a child could not import it."""
    try:
        return pickle.dumps(handler)
    except Exception as error:  # pickling runs code of the object
        raise ConfigError(
            f"{get_handler_name(handler)} cannot run in a process of its own ({error}): use a "
            "function at the top of an importable module"
        ) from None


class ChildProcess:
    """One child, its pipes and its process group. One thread uses it, except for `abort`."""

    def __init__(self, handler: bytes, interval: float, clock: Clock) -> None:
        self._clock = clock
        self._codec: MessageCodec[Any] | None = None
        # Two one-way pipes are twice as fast as one duplex pipe.
        child_reads, self._to_child = _spawn.Pipe(duplex=False)
        self._from_child, child_writes = _spawn.Pipe(duplex=False)
        self._control, control = _spawn.Pipe()
        self._stacks, stacks = _spawn.Pipe(duplex=False)
        child_ends = (child_reads, child_writes, control, stacks)
        self._process = _spawn.Process(
            target=child_main.main, args=(*child_ends, handler, interval)
        )
        try:
            _start(self._process)
        except BaseException:
            self._close_pipes()
            raise
        finally:
            for pipe in child_ends:
                pipe.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        for pipe in self._pipes():
            os.set_blocking(pipe.fileno(), False)
        self._frames = Frames(self._from_child.fileno(), self._to_child.fileno())
        self._number = 0  # of the attempt, in each of its frames
        self._loading = True  # the child imports user code and may report that it cannot
        self._all_sent = True
        self._deadline = 0.0
        self._poll = poll()
        for readable in (self._from_child, self._control, self._process.sentinel):
            self._poll.register(readable, POLLIN)
        # If `close` is never called, Python would wait for the child forever at its exit.
        atexit.register(self.abort)

    # -- exchanging frames

    def wait(self, seconds: float) -> None:
        """Wait until the child has sent something or ended, or until `seconds` have passed."""
        self._poll.poll(seconds * 1000)
        if not self._all_sent:
            self._set_all_sent(self._frames.flush())

    def read(self) -> bytes | None:
        """Return the next frame of the child, or None if there is none yet.

        Raises EOFError if the child closed its pipe, BrokenFrame if the frame belongs to
        another attempt, and HandlerNotFound if the child cannot load the user's code.
        """
        if (numbered_frame := self._frames.read()) is None:
            return None
        number, frame = child_wire.split_number(numbered_frame)
        if number != self._number:
            raise BrokenFrame("it is not about this attempt")
        if self._loading and frame[:1] == child_wire.BROKEN:
            problem = frame[1:].decode(errors="replace")
            raise HandlerNotFound(f"a worker process cannot load the handler: {problem}")
        self._loading = False
        return frame

    def send(self, frame: bytes) -> None:
        """Send a frame of the current attempt."""
        self._set_all_sent(self._frames.send(child_wire.add_number(self._number, frame)))

    def respond(self, frame: bytes) -> None:
        """Send a response. Raises BrokenFrame if the child does not read its responses."""
        if self._frames.unsent_bytes > MAX_FRAME_BYTES:
            raise BrokenFrame("it sends requests without reading the responses")
        self.send(frame)

    def _set_all_sent(self, all_sent: bool) -> None:
        if all_sent != self._all_sent:
            self._all_sent = all_sent
            if all_sent:
                self._poll.unregister(self._to_child)
            else:
                self._poll.register(self._to_child, POLLOUT)

    def begin(self, message: QueueMessage, lease: Lease) -> None:
        """Have the child start work on a message.

        Raises HandlerNotFound if a child cannot import the message type, and
        MalformedMessage or MessageTooLarge if the message cannot be sent. In these cases
        nothing was started.
        """
        self._number += 1
        if self._codec is None or self._codec.model is not type(message):
            self._codec = MessageCodec(type(message))
            self.send(_pack_model(type(message)))
            self._loading = True
        body = self._codec.encode(message)
        self._deadline = lease.deadline
        self.send(child_wire.pack_call(lease, body))

    def send_deadline(self, deadline: float) -> None:
        """Send the deadline if it changed, because the child ends itself after its deadline."""
        if deadline != self._deadline:
            self._deadline = deadline
            self._send_control(child_wire.DEADLINE, deadline)

    def send_stopping(self) -> None:
        """Notify the child that the worker is stopping."""
        self._send_control(child_wire.STOPPING, 0.0)

    def _send_control(self, kind: bytes, value: float) -> None:
        with suppress(OSError):  # it ended or does not read; other checks notice both
            os.write(self._control.fileno(), child_wire.CONTROL.pack(kind, value))

    def read_pulses(self) -> bytes:
        """Read the pulses since the last call. Raises BrokenFrame for any other byte."""
        try:
            pulses = os.read(self._control.fileno(), 4096)
        except OSError:
            return b""
        if pulses.strip(child_wire.PULSE + child_wire.MOVED):
            raise BrokenFrame("its pulse is invalid")
        return pulses

    # -- watching and ending

    @property
    def is_alive(self) -> bool:
        """Whether the process exists."""
        return self._process.exitcode is None

    @property
    def is_idle(self) -> bool:
        """Whether it is alive and sent nothing after its last outcome. Use between messages."""
        try:
            return self.is_alive and self._frames.read() is None
        except (EOFError, BrokenFrame):
            return False

    def describe_exit(self) -> str:
        """Return how the process ended, or "not yet"."""
        code = self._process.exitcode
        return "not yet" if code is None else describe_exit(code)

    def dump_stacks(self) -> str:
        """Return the stacks of all threads, even if the child's interpreter is stuck."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, child_main.STACKS_SIGNAL)
        return self._read_stacks(_STACKS_SECONDS)

    def read_crash_stacks(self) -> str:
        """Return the stacks that the child wrote when it crashed."""
        return self._read_stacks(0.0)

    def _read_stacks(self, seconds: float) -> str:
        stacks_poll = poll()
        stacks_poll.register(self._stacks.fileno(), POLLIN)
        text = bytearray()
        until = self._clock.monotonic() + seconds
        while len(text) < _MAX_STACKS_BYTES and stacks_poll.poll(
            max(0.0, until - self._clock.monotonic()) * 1000
        ):
            try:
                chunk = os.read(self._stacks.fileno(), 1 << 16)
            except OSError:
                break
            if not chunk:
                break
            text += chunk
            until = min(until, self._clock.monotonic() + _QUIET_SECONDS)
        return text.decode(errors="replace")

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def wait_until_dead(self, seconds: float) -> bool:
        """Wait at most `seconds` for the process to end, and return whether it did.

        The sentinel alone does not show it, because forks of the child hold it open.
        """
        until = self._clock.monotonic() + seconds
        sentinel_poll = poll()
        sentinel_poll.register(self._process.sentinel, POLLIN)
        pause = 0.001
        while self.is_alive and (left := until - self._clock.monotonic()) > 0:
            if sentinel_poll.poll(min(left, pause) * 1000):
                self._clock.sleep(min(left, 0.001))
            pause = min(pause * 2, 0.05)
        return not self.is_alive

    def abort(self) -> None:
        """Kill the process and everything it started, at once."""
        if self.is_alive:
            self._process.kill()
        kill_group(self.pid)

    def close(self, grace_seconds: float) -> None:
        """Let the process end by itself within `grace_seconds`, then kill it."""
        self._to_child.close()
        self.wait_until_dead(grace_seconds)
        self.destroy()

    def destroy(self) -> str | None:
        """Kill the process and release its resources.

        Return how it ended, or None if it cannot be killed.
        """
        self.abort()
        dead = self.wait_until_dead(_DEATH_SECONDS)
        atexit.unregister(self.abort)
        self._close_pipes()
        if not dead:
            return None
        self._wait_for_group()
        exit_text = self.describe_exit()
        self._process.close()
        return exit_text

    def _wait_for_group(self) -> None:
        """Wait until the processes that the child started, and that were killed, are gone.

        The wait has a limit, because dead members stay in their group if no process reaps
        orphans.
        """
        until = self._clock.monotonic() + _GROUP_SECONDS
        while not is_group_gone(self.pid) and self._clock.monotonic() < until:
            self._clock.sleep(0.002)

    def _pipes(self) -> tuple[Connection, ...]:
        return self._to_child, self._from_child, self._control, self._stacks

    def _close_pipes(self) -> None:
        for pipe in self._pipes():
            pipe.close()


def _start(process: Any) -> None:
    with _start_lock:
        # The first start of the resource tracker unblocks SIGINT, so start it before.
        resource_tracker.ensure_running()
        with block_sigint():
            process.start()


def _pack_model(model: type) -> bytes:
    try:
        return child_wire.pack_model(model)
    except Exception as error:
        raise HandlerNotFound(
            f"{model.__name__} cannot reach a process of its own ({error}): define it at "
            "the top of an importable module"
        ) from None
