"""The main program of every child process, and what its programs share.

The main thread serves the parent. A second thread sends pulses, which show that the
interpreter responds. This module imports little, and the user's code last, because there may
be many of these processes.
"""

import faulthandler
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from select import POLLIN, POLLOUT, poll
from threading import Lock, Thread
from typing import Any, NoReturn

from holdfast.process.frames import PULSE, READY, Frames, Program, describe_error, pack_broken
from holdfast.process.process_group import OUT_OF_MEMORY, detach_from_terminal, start_guard

STACKS_SIGNAL = signal.SIGQUIT  # as in Java


def main() -> None:
    """Run a child process. The arguments are the parent's process id and the pipes."""
    parent, *pipes = (int(argument) for argument in sys.argv[1:6])
    commands, messages, control, stacks = pipes
    detach_from_terminal()
    start_guard(parent, control)
    for pipe in pipes:
        os.set_inheritable(pipe, False)  # processes of the user's code must not hold them open
    # Both are C code that needs no interpreter, so they also show where it is stuck.
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks)
    link = ParentLink(commands, messages, control, stacks)
    program, main_module = link.read_program()
    if main_module is not None:
        # An error ends this process with a traceback, as it would end the script.
        _import_main_module(main_module, parent, control)
    signal.signal(signal.SIGTERM, _raise_terminated)
    run_or_exit(_serve, program, link)


def _import_main_module(main_module: dict[str, Any], parent: int, control: int) -> None:
    """Import the parent's main module like a process that `multiprocessing` spawned.

    The user's code may be defined there, and may ask `multiprocessing` for its parent.
    """
    from multiprocessing import process, spawn

    process._parent_process = process._ParentProcess("MainProcess", parent, control)  # type: ignore[attr-defined]
    current: Any = process.current_process()
    # `multiprocessing` refuses to start processes meanwhile. Without this, a script that
    # does so while it is imported would start processes without end.
    current._inheriting = True
    try:
        spawn.prepare(main_module)
    finally:
        del current._inheriting


def _serve(program: Program, link: "ParentLink") -> None:
    with link.report_broken(0):
        prepare = import_module(program.module).prepare
        # The parent process sent the bytes.
        serve = prepare(pickle.loads(program.code), link, **program.options)  # noqa: S301
    link.send(0, READY)
    serve()


# -- how a child ends


class Terminated(BaseException):
    """SIGTERM arrived. The `finally` blocks of the user's code run, then the process ends."""


def _raise_terminated(*_: object) -> NoReturn:
    raise Terminated


def start_thread(name: str, run: Callable[..., None], *args: Any) -> None:
    """Start a thread that ends the whole process if it fails.

    A process that lost one of its threads would take work and never finish it.
    """
    target_args = (run, *args)
    Thread(target=run_or_exit, args=target_args, name=f"holdfast-{name}", daemon=True).start()


def run_or_exit(run: Callable[..., None], *args: Any) -> None:
    """Run one thread's function, and end the whole process if it raises."""
    try:
        run(*args)
    except Terminated:
        # End with the signal, so that the exit status shows it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    except MemoryError:  # the state of the process cannot be trusted
        _exit(OUT_OF_MEMORY)
    except BaseException as error:
        with suppress(Exception):
            sys.stderr.write(f"holdfast worker: {describe_error(error)}\n")
        _exit(1)


def _exit(code: int) -> NoReturn:
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    # Not by sys.exit, because the interpreter would wait for threads that never end.
    os._exit(code)


# -- the pipes


class ParentLink:
    """The child's ends of the pipes. All threads may send; only one at a time may read."""

    def __init__(self, commands: int, messages: int, control: int, stacks: int) -> None:
        self.stacks = stacks
        self._control = control
        self._frames = Frames(commands, messages)
        self._sending = Lock()
        self._control_poll, self._room_poll = poll(), poll()
        self._control_poll.register(control, POLLIN)
        self._room_poll.register(messages, POLLOUT)

    def read_program(self) -> tuple[Program, dict[str, Any] | None]:
        """Return the program and, if it needs the parent's main module, that module's data."""
        length, data = int(self._read_part()), b""
        while len(data) < length:
            data += self._read_part()
        program: tuple[Program, dict[str, Any] | None] = pickle.loads(data)  # noqa: S301
        return program

    def _read_part(self) -> bytes:
        if (frame := self.read()) is None:  # the parent is gone
            _exit(1)
        return frame[1]

    def read(self) -> tuple[int, bytes] | None:
        """Wait for the next frame; None means that there will be no more."""
        try:
            return self._frames.read()
        except EOFError:
            return None

    def send(self, number: int, frame: bytes) -> None:
        """Send a frame. Raises MessageTooLarge, and sends nothing, if it is too long."""
        with self._sending:
            self._frames.send(number, frame)

    def send_pulse(self, make_pulse: Callable[[], tuple[int, bytes] | None]) -> None:
        """Send a pulse, unless `make_pulse` returns None.

        Never waits. While another thread sends, or while the parent does not read, there is
        no pulse. No other frame can be sent between `make_pulse` and the pulse.
        """
        if self._sending.acquire(blocking=False):
            try:
                if self._room_poll.poll(0) and (pulse := make_pulse()) is not None:
                    self._frames.send(pulse[0], PULSE + pulse[1])
            finally:
                self._sending.release()

    def wait_control(self, seconds: float) -> bytes | None:
        """Wait for control records. Return None if the parent closed the pipe."""
        if not self._control_poll.poll(seconds * 1000):
            return b""
        return os.read(self._control, 4096) or None

    @contextmanager
    def report_broken(self, number: int) -> Iterator[None]:
        """Report to the parent that the user's code cannot be loaded, and end this process."""
        try:
            yield
        except (Terminated, MemoryError):
            raise
        except BaseException as error:
            self.send(number, pack_broken(error))
            _exit(1)


class PulseSender:
    """The thread that sends pulses until the parent closes its pipe."""

    def __init__(self, link: ParentLink, pulse_seconds: float) -> None:
        self._link = link
        self._pulse_seconds = pulse_seconds

    def start(self) -> None:
        """Start the thread."""
        start_thread("pulse", self._run)

    def _run(self) -> None:
        # When the parent closes the pipe, the guard and the main thread notice it, too.
        while (records := self._link.wait_control(self.compute_pause())) is not None:
            self.handle_control(records)
            self._link.send_pulse(self.make_pulse)

    def compute_pause(self) -> float:
        """Return the seconds until the next pulse."""
        return self._pulse_seconds

    def handle_control(self, records: bytes) -> None:
        """Handle what the parent wrote to the control pipe, in complete records."""

    def make_pulse(self) -> tuple[int, bytes] | None:
        """Return the number and the content of the pulse, or None if there is to be none."""
        return 0, b""
