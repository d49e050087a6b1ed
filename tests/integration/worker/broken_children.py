"""Handlers whose process sends invalid data to the worker. Children can import them.

Each does so on its first attempt only, and would then sleep until it is killed.
"""

import inspect
import os
import struct
import time
from pathlib import Path
from typing import Any

from holdfast.process.frames import PULSE
from holdfast.worker import child_wire
from holdfast.worker.runner import Context
from support.workers.notes import Notes

FLOOD_BYTES = 256 << 20  # a reader without a limit would keep all this in memory


def do(message: Any, ctx: Any) -> None:
    notes = Notes(Path(message.notes))
    notes.write(f"pid {os.getpid()}")
    if ctx.attempt == 1:
        globals()[message.what](message, ctx)
    notes.write(f"finished {message.id}")


def finish(message: Any, ctx: Context) -> None:
    """Finish without sending anything wrong."""


# -- bytes


def raw(message: Any, ctx: Any) -> None:
    _write(ctx, bytes.fromhex(message.data))
    time.sleep(1000)


def frame(message: Any, ctx: Any) -> None:
    """Send a complete frame of this attempt with any content, after a valid one."""
    ctx.beat(checkpoint={"good": True})
    _write(ctx, _frame(ctx._queue._number, message.data.encode()))
    time.sleep(1000)


def endless_frame(message: Any, ctx: Any) -> None:
    _write(ctx, struct.pack("!I", 0xFFFFFFFF))
    for _ in range(FLOOD_BYTES >> 20):
        _write(ctx, b"x" * (1 << 20))
    time.sleep(1000)


def endless_requests(message: Any, ctx: Any) -> None:
    """Send requests forever and never read a response."""
    request = _frame(ctx._queue._number, child_wire.pack_save({}))
    while True:
        _write(ctx, request * 1000)


def endless_stacks(message: Any, ctx: Any) -> None:
    """Stall, and flood the pipe for stack dumps."""
    while True:
        os.write(ctx._queue._link.stacks, b"x" * (1 << 16))


def invalid_pulse(message: Any, ctx: Any) -> None:
    _write(ctx, _frame(ctx._queue._number, PULSE + b"?"))
    time.sleep(1000)


# -- complete frames at the wrong time


def outcome_twice(message: Any, ctx: Any) -> None:
    """Send the outcome of this attempt twice, in one write."""
    ctx._queue._link.send = lambda number, payload: _write(ctx, _frame(number, payload) * 2)


def outcome_and_more(message: Any, ctx: Any) -> None:
    request = _frame(ctx._queue._number, child_wire.LOAD)
    ctx._queue._link.send = lambda number, payload: _write(
        ctx, _frame(number, payload) + request
    )


def outcome_of_another_attempt(message: Any, ctx: Any) -> None:
    """Send the outcome of the previous attempt, as if it came late."""
    _write(ctx, _frame(ctx._queue._number - 1, child_wire.OUTCOME))
    time.sleep(1000)


class GarbageAtStart:
    """A handler that sends garbage while it is unpickled."""

    def __call__(self, message: Any) -> None:
        """Never called."""

    def __reduce__(self) -> Any:
        return _send_garbage, ()


def _send_garbage() -> Any:
    link = next(f.frame.f_locals["link"] for f in inspect.stack() if f.function == "main")
    link.send(0, b"rubbish")
    return GarbageAtStart()


def _frame(number: int, payload: bytes) -> bytes:
    return struct.pack("!IQ", 8 + len(payload), number) + payload


def _write(ctx: Any, data: bytes) -> None:
    while data:
        data = data[os.write(ctx._queue._link._frames._write_fd, data) :]
