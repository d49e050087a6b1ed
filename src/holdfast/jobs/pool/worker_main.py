"""Inside a worker process of the pool: some slots for tasks, one pulse, no neighbours.

The main thread reads orders, a thread for each slot does tasks, and the pulse says every
moment that the interpreter answers and how far each task is. Memory that ran out cannot be
trusted to be whole again, so a MemoryError ends the process and a fresh one goes on.

Imports little, and the user's code last: there are several of these processes.
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
from holdfast.core.process.orphan_guard import end_in_peace, end_with, leave_terminal
from holdfast.jobs.pool import wire

if TYPE_CHECKING:
    from holdfast.jobs.pool.ports import TaskHandler

OUT_OF_MEMORY = 112  # our exit code for it; no shell or signal has that one

_Task = Mapping[str, Any]


def main() -> None:
    """What the pool starts: its process id and the pipes are in the arguments."""
    parent, orders, answers, lifeline = (int(word) for word in sys.argv[1:5])
    leave_terminal()
    guard = end_with(parent, lifeline)
    os.close(lifeline)  # the guard has it
    for pipe in (orders, answers):
        os.set_inheritable(pipe, False)  # what the work starts must not hold them open
    _or_end(_serve, Frames(orders, answers), guard)


def _or_end(do: Callable[..., None], *args: Any) -> None:
    """No thread of ours may end without the others: half a worker takes tasks for nothing."""
    code = 1
    try:
        do(*args)
    except MemoryError:
        code = OUT_OF_MEMORY
    except BaseException as error:
        with suppress(Exception):
            sys.stderr.write(f"holdfast worker: {wire.told(error)}\n")
    _flush()
    # Not by the interpreter's own end: it would wait for threads that do not listen.
    os._exit(code)


def _flush() -> None:
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()


def _serve(frames: Frames, guard: int) -> None:
    desk = PoolConnection(frames)
    _, settings = wire.unpack_order(desk.next_order() or b"")
    work = _made(desk)
    if work is not None:
        _work(work, desk, **settings)
    _flush()
    end_in_peace(guard)


def _work(
    work: "TaskHandler", desk: "PoolConnection", *, slots: int, pulse_seconds: float
) -> None:
    _start(_pulse, desk, pulse_seconds)
    tasks: SimpleQueue[_Task] = SimpleQueue()
    for _ in range(slots):
        _start(_slot, work, tasks, desk)
    desk.send(wire.pack_ready())
    while (order := desk.next_order()) is not None:
        _obey(order, work, tasks, desk)
    work.close()


def _start(do: Callable[..., None], *args: Any) -> None:
    name = f"holdfast-{do.__name__.strip('_')}"
    Thread(target=_or_end, args=(do, *args), name=name, daemon=True).start()


def _made(desk: "PoolConnection") -> "TaskHandler | None":
    """The work, made from the pickled factory: to load that is to import the user's code."""
    try:
        work: TaskHandler = pickle.loads(desk.next_order() or b"")()  # noqa: S301  # of our parent
    except MemoryError:
        raise
    except BaseException as error:
        desk.send(wire.pack_broken(error))
        return None
    return work


def _obey(
    frame: bytes, work: "TaskHandler", tasks: "SimpleQueue[_Task]", desk: "PoolConnection"
) -> None:
    kind, payload = wire.unpack_order(frame)
    if kind == "PROCESS_TASK":
        desk.begin(payload["nonce"])
        tasks.put(payload)
    elif kind == "CANCEL_JOB":
        try:
            work.cancel(payload["jobId"])
        except MemoryError:
            raise
        except Exception as error:  # the task goes on; it will be asked again
            sys.stderr.write(f"holdfast worker: cancel failed: {wire.told(error)}\n")


def _slot(work: "TaskHandler", tasks: "SimpleQueue[_Task]", desk: "PoolConnection") -> None:
    while True:
        task = tasks.get()
        desk.end(task, _result(work, task, desk))


def _result(work: "TaskHandler", task: _Task, desk: "PoolConnection") -> Mapping[str, Any]:
    nonce = task["nonce"]
    try:
        return wire.checked(work.process(task, lambda more: desk.add(nonce, more)))
    except MemoryError:
        raise
    except BaseException as error:
        return wire.failure(error)


def _pulse(desk: "PoolConnection", seconds: float) -> None:
    while True:
        desk.send(wire.pack_pulse(desk.so_far()))
        SYSTEM_CLOCK.sleep(seconds)


class PoolConnection:
    """The pipe to the pool and the tallies of what runs, for all threads in here."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._sending = Lock()
        self._counting = Lock()
        self._done: dict[int, int] = {}

    def next_order(self) -> bytes | None:
        """Wait for it; None: there will be no more."""
        try:
            return self._frames.read()
        except EOFError:
            return None

    def send(self, frame: bytes) -> None:
        with self._sending:
            self._frames.send(frame)

    def begin(self, nonce: int) -> None:
        with self._counting:
            self._done[nonce] = 0

    def add(self, nonce: int, more: int) -> None:
        with self._counting:
            if nonce in self._done:  # not for one that reports on after its end
                self._done[nonce] += int(more)

    def end(self, task: _Task, result: Mapping[str, Any]) -> None:
        with self._counting:
            del self._done[task["nonce"]]
        self.send(wire.pack_completed(task, result))

    def so_far(self) -> list[tuple[int, int]]:
        with self._counting:
            return [(n, min(max(0, done), wire.MOST_BYTES)) for n, done in self._done.items()]
