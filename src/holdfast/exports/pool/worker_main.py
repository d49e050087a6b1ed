"""The program of a worker process: a few slots for tasks.

The main thread reads commands, and one thread for each slot does tasks. The pulse shows how
far each task is. After a MemoryError the state of the process cannot be trusted, so the
process ends and a new one goes on.

This module imports little, because there are several of these processes.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any

from holdfast.exports.pool import wire
from holdfast.process.child_main import ParentLink, PulseSender, start_thread
from holdfast.process.frames import describe_error

if TYPE_CHECKING:
    from holdfast.exports.pool.worker import HandlerFactory, TaskHandler

TaskQueue = SimpleQueue[tuple[int, Mapping[str, Any]]]  # each with the nonce of its attempt


def prepare(
    make_handler: "HandlerFactory", link: ParentLink, *, slots: int, pulse_seconds: float
) -> Callable[[], None]:
    """Create the handler. Return the function that serves until the pool closes the pipe."""
    handler = make_handler()
    progress = ProgressPulseSender(link, pulse_seconds)
    progress.start()
    tasks: TaskQueue = SimpleQueue()
    for _ in range(slots):
        start_thread("slot", _run_slot, handler, tasks, progress, link)
    return partial(_serve, handler, tasks, progress, link)


def _serve(
    handler: "TaskHandler", tasks: TaskQueue, progress: "ProgressPulseSender", link: ParentLink
) -> None:
    while (frame := link.read()) is not None:
        kind, payload = wire.unpack_command(frame[1])
        if kind == "PROCESS_TASK":
            progress.begin_task(frame[0])
            tasks.put((frame[0], payload))
        elif kind == "CANCEL_JOB":
            _cancel(handler, payload["jobId"])
    handler.close()


def _cancel(handler: "TaskHandler", job_id: str) -> None:
    try:
        handler.cancel(job_id)
    except MemoryError:
        raise
    except Exception as error:  # the task goes on, and the pool sends the cancel again
        sys.stderr.write(f"holdfast worker: cancel failed: {describe_error(error)}\n")


def _run_slot(
    handler: "TaskHandler", tasks: TaskQueue, progress: "ProgressPulseSender", link: ParentLink
) -> None:
    while True:
        nonce, task = tasks.get()
        result = _process_task(handler, task, partial(progress.add_bytes, nonce))
        progress.end_task(nonce)
        link.send(nonce, wire.pack_completed(task, result))


def _process_task(
    handler: "TaskHandler", task: Mapping[str, Any], report: Callable[[int], None]
) -> Mapping[str, Any]:
    try:
        return wire.check_result(handler.process(task, report))
    except MemoryError:
        raise
    except BaseException as error:
        return wire.result_from_error(error)


class ProgressPulseSender(PulseSender):
    """Sends pulses with the byte counts of the running tasks, for all threads."""

    def __init__(self, link: ParentLink, pulse_seconds: float) -> None:
        super().__init__(link, pulse_seconds)
        self._counting = Lock()
        self._bytes_by_nonce: dict[int, int] = {}

    def begin_task(self, nonce: int) -> None:
        """Begin to count the bytes of a task."""
        with self._counting:
            self._bytes_by_nonce[nonce] = 0

    def add_bytes(self, nonce: int, more: int) -> None:
        """Add bytes to a task's count."""
        with self._counting:
            if nonce in self._bytes_by_nonce:  # a task may report even after its end
                self._bytes_by_nonce[nonce] += int(more)

    def end_task(self, nonce: int) -> None:
        """Stop counting the task's bytes."""
        with self._counting:
            del self._bytes_by_nonce[nonce]

    def make_pulse(self) -> tuple[int, bytes]:
        """Return the byte count of each running task by its nonce."""
        with self._counting:
            counts = list(self._bytes_by_nonce.items())
        valid = ((nonce, min(max(0, done), wire.MAX_BYTES)) for nonce, done in counts)
        return 0, wire.pack_progress(valid)
