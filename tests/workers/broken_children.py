"""Handlers whose process says to the worker what it never should. Importable by children.

Each does so on its first attempt only, and would then sleep until it is killed.
"""

import inspect
import os
import struct
import time
from pathlib import Path
from typing import Any

from holdfast.core.worker import child_wire
from holdfast.core.worker.context import Context
from workers.kit import Notes

FLOOD_BYTES = 256 << 20  # what a reader without a limit would keep in memory


def do(message: Any, ctx: Any) -> None:
    notes = Notes(Path(message.notes))
    notes.write(f"pid {os.getpid()}")
    if ctx.attempt == 1:
        globals()[message.what](message, ctx)
    notes.write(f"finished {message.id}")


def finish(message: Any, ctx: Context) -> None:
    """Nothing wrong here."""


# -- bytes


def raw(message: Any, ctx: Any) -> None:
    _write(ctx, bytes.fromhex(message.said))
    time.sleep(1000)


def frame(message: Any, ctx: Any) -> None:
    """A whole frame about this attempt, whatever is in it, after a good one."""
    ctx.beat(checkpoint={"good": True})
    _write(ctx, _framed(_of_this_attempt(ctx, message.said.encode())))
    time.sleep(1000)


def endless_frame(message: Any, ctx: Any) -> None:
    _write(ctx, struct.pack("!I", 0xFFFFFFFF))
    for _ in range(FLOOD_BYTES >> 20):
        _write(ctx, b"x" * (1 << 20))
    time.sleep(1000)


def questions_without_end(message: Any, ctx: Any) -> None:
    """Asks on and on, and never reads an answer."""
    question = _framed(_of_this_attempt(ctx, child_wire.LOAD))
    while True:
        _write(ctx, question * 1000)


def stacks_without_end(message: Any, ctx: Any) -> None:
    """Floods the pipe for stack dumps while it stalls."""
    while True:
        os.write(ctx._pulse._stacks, b"x" * (1 << 16))


def odd_pulse(message: Any, ctx: Any) -> None:
    os.write(ctx._pulse._control, b"?")
    time.sleep(1000)


# -- whole frames at the wrong time


def outcome_twice(message: Any, ctx: Any) -> None:
    """The outcome of this attempt is sent twice, in one piece."""
    ctx._frames.send = lambda payload: _write(ctx, _framed(payload) * 2)


def outcome_and_more(message: Any, ctx: Any) -> None:
    question = _framed(_of_this_attempt(ctx, child_wire.LOAD))
    ctx._frames.send = lambda payload: _write(ctx, _framed(payload) + question)


def outcome_of_another_attempt(message: Any, ctx: Any) -> None:
    """As one that came late, when the next message has begun."""
    _write(ctx, _framed(child_wire.numbered(ctx._number - 1, child_wire.OUTCOME)))
    time.sleep(1000)


class RubbishAtStart:
    """A handler that cannot be loaded without something being said."""

    def __call__(self, message: Any) -> None:
        """Never called."""

    def __reduce__(self) -> Any:
        return _talk_rubbish, ()


def _talk_rubbish() -> Any:
    frames = next(f.frame.f_locals["frames"] for f in inspect.stack() if f.function == "main")
    frames.send(b"rubbish")
    return RubbishAtStart()


def _of_this_attempt(ctx: Any, said: bytes) -> bytes:
    return child_wire.numbered(ctx._number, said)


def _framed(payload: bytes) -> bytes:
    return struct.pack("!I", len(payload)) + payload


def _write(ctx: Any, data: bytes) -> None:
    while data:
        data = data[os.write(ctx._frames._writes, data) :]
