"""The program of a worker process: a few slots for tasks, and a pulse.

The main thread reads commands, one thread for each slot does tasks, and another thread
sends the pulse. The pulse shows that the interpreter responds and how far each task is.
After a MemoryError the state of the process cannot be trusted, so the process ends and a
new one goes on.

This module imports little, and the user's code last, because there are several of these
processes.
"""

import os
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.process.frames import Frames
from holdfast.core.process.orphan_guard import (
    detach_from_terminal,
    start_guard,
    stop_guard_and_kill_group,
)
from holdfast.jobs.pool import wire

if TYPE_CHECKING:
    from holdfast.jobs.pool.ports import TaskHandler

OUT_OF_MEMORY = 112  # an exit code that no shell and no signal uses

_Task = Mapping[str, Any]


def main() -> None:
    """Run a worker process. The arguments are the pool's process id and the pipes."""
    parent, commands, messages, sentinel = (int(argument) for argument in sys.argv[1:5])
    detach_from_terminal()
    guard = start_guard(parent, sentinel)
    os.close(sentinel)  # the guard has its own copy
    for pipe in (commands, messages):
        os.set_inheritable(pipe, False)  # processes of the handler must not hold them open
    _run_or_exit(_serve, Frames(commands, messages), guard)


def _run_or_exit(run: Callable[..., None], *args: Any) -> None:
    """Run one thread's function, and end the whole process when it returns or raises.

    A process that lost one of its threads would take tasks and never finish them.
    """
    code = 1
    try:
        run(*args)
    except MemoryError:
        code = OUT_OF_MEMORY
    except BaseException as error:
        with suppress(Exception):
            sys.stderr.write(f"holdfast worker: {wire.describe_error(error)}\n")
    _flush()
    # Not by sys.exit, because the interpreter would wait for threads that never end.
    os._exit(code)


def _flush() -> None:
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()


def _serve(frames: Frames, guard: int) -> None:
    connection = PoolConnection(frames)
    _, settings = wire.unpack_command(connection.read_command() or b"")
    handler = _make_handler(connection)
    if handler is not None:
        _work(handler, connection, **settings)
    _flush()
    stop_guard_and_kill_group(guard)


def _work(
    handler: "TaskHandler", connection: "PoolConnection", *, slots: int, pulse_seconds: float
) -> None:
    _start_thread("pulse", _send_pulses, connection, pulse_seconds)
    tasks: SimpleQueue[_Task] = SimpleQueue()
    for _ in range(slots):
        _start_thread("slot", _run_slot, handler, tasks, connection)
    connection.send(wire.pack_ready())
    while (command := connection.read_command()) is not None:
        _handle_command(command, handler, tasks, connection)
    handler.close()


def _start_thread(name: str, run: Callable[..., None], *args: Any) -> None:
    target_args = (run, *args)
    Thread(target=_run_or_exit, args=target_args, name=f"holdfast-{name}", daemon=True).start()


def _make_handler(connection: "PoolConnection") -> "TaskHandler | None":
    """Create the handler from the pickled factory. Loading that imports the user's code."""
    try:
        # The bytes come from the process that started this one.
        make_handler = pickle.loads(connection.read_command() or b"")  # noqa: S301
        handler: TaskHandler = make_handler()
    except MemoryError:
        raise
    except BaseException as error:
        connection.send(wire.pack_broken(error))
        return None
    return handler


def _handle_command(
    frame: bytes,
    handler: "TaskHandler",
    tasks: "SimpleQueue[_Task]",
    connection: "PoolConnection",
) -> None:
    kind, payload = wire.unpack_command(frame)
    if kind == "PROCESS_TASK":
        connection.begin_task(payload["nonce"])
        tasks.put(payload)
    elif kind == "CANCEL_JOB":
        try:
            handler.cancel(payload["jobId"])
        except MemoryError:
            raise
        except Exception as error:  # the task goes on, and the pool sends the cancel again
            sys.stderr.write(f"holdfast worker: cancel failed: {wire.describe_error(error)}\n")


def _run_slot(
    handler: "TaskHandler", tasks: "SimpleQueue[_Task]", connection: "PoolConnection"
) -> None:
    while True:
        task = tasks.get()
        connection.end_task(task, _process_task(handler, task, connection))


def _process_task(
    handler: "TaskHandler", task: _Task, connection: "PoolConnection"
) -> Mapping[str, Any]:
    nonce = task["nonce"]
    try:
        result = handler.process(task, lambda more: connection.add_bytes(nonce, more))
        return wire.check_result(result)
    except MemoryError:
        raise
    except BaseException as error:
        return wire.result_from_error(error)


def _send_pulses(connection: "PoolConnection", seconds: float) -> None:
    while True:
        connection.send(wire.pack_pulse(connection.list_progress()))
        SYSTEM_CLOCK.sleep(seconds)


class PoolConnection:
    """The pipes to the pool and the byte counts of the running tasks, for all threads."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._sending = Lock()
        self._counting = Lock()
        self._bytes_by_nonce: dict[int, int] = {}

    def read_command(self) -> bytes | None:
        """Wait for the next command; None means that there will be no more."""
        try:
            return self._frames.read()
        except EOFError:
            return None

    def send(self, frame: bytes) -> None:
        """Send a frame to the pool."""
        with self._sending:
            self._frames.send(frame)

    def begin_task(self, nonce: int) -> None:
        """Begin to count the bytes of a task."""
        with self._counting:
            self._bytes_by_nonce[nonce] = 0

    def add_bytes(self, nonce: int, more: int) -> None:
        """Add bytes to a task's count."""
        with self._counting:
            if nonce in self._bytes_by_nonce:  # a task may report even after its end
                self._bytes_by_nonce[nonce] += int(more)

    def end_task(self, task: _Task, result: Mapping[str, Any]) -> None:
        """Stop counting the task's bytes, and send its result."""
        with self._counting:
            del self._bytes_by_nonce[task["nonce"]]
        self.send(wire.pack_completed(task, result))

    def list_progress(self) -> list[tuple[int, int]]:
        """Return the nonce and the byte count of each running task."""
        with self._counting:
            return [
                (nonce, min(max(0, done), wire.MAX_BYTES))
                for nonce, done in self._bytes_by_nonce.items()
            ]
