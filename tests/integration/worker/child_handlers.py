"""Handlers that child processes can import and that record what they do in a file."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.errors import MessageTooLarge
from holdfast.queue.message import QueueMessage
from holdfast.worker.outcome import Reject, Retry
from holdfast.worker.runner import Context
from support.workers.notes import Notes


class Enrich(QueueMessage):
    """A message type that child processes can import."""

    what: str
    notes: str
    when: datetime


@dataclass
class Parcel:
    """The payload of a message."""

    note: str
    weight: int


def note(message: Any, line: str) -> None:
    Notes(Path(message.notes)).write(line)


def do(message: Any, ctx: Context) -> Any:
    """Call the function below that the message names in `do`."""
    note(message, f"pid {os.getpid()}")
    note(message, f"attempt {ctx.attempt}")
    return globals()[message.what](message, ctx)


def only_message(message: Any) -> None:
    note(message, f"alone {message.id}")


def deliver(message: Any) -> None:
    """Write the payload of the message, which no annotation names."""
    parcel = message.payload
    Path(parcel.note).write_text(f"{type(parcel).__name__} {message.id} {parcel.weight}")


async def coroutine(message: Any, ctx: Context) -> Any:
    import asyncio  # here, because most children need none of it

    await asyncio.sleep(0.01)
    note(message, f"awaited {message.id}")
    return Reject("as a coroutine says")


def carry(ballast: bytes, message: Any) -> None:
    note(message, f"ballast {len(ballast)}")


def save_without_end(message: Any, ctx: Context) -> None:
    """Send one large checkpoint after the other."""
    note(message, "sleeping now")
    while True:
        ctx.beat(checkpoint="x" * 900_000)


# -- ways to end


def finish(message: Any, ctx: Context) -> None:
    note(message, f"finished {message.id}")


def ask_for_retry(message: Any, ctx: Context) -> Any:
    return Retry(0.01, "a child asks", "with detail") if ctx.attempt == 1 else None


def reject(message: Any, ctx: Context) -> Any:
    return Reject("a child rejects")


def raise_error(message: Any, ctx: Context) -> None:
    raise ValueError("from a child")


def leave(message: Any, ctx: Context) -> None:
    raise SystemExit(7)


def interrupt(message: Any, ctx: Context) -> None:
    raise KeyboardInterrupt


def nonsense(message: Any, ctx: Context) -> Any:
    return {"secret": 1}


def exit_at_once(message: Any, ctx: Context) -> None:
    os._exit(3)


def crash(message: Any, ctx: Context) -> None:
    ctypes.string_at(0)


def exit_once(message: Any, ctx: Context) -> None:
    if ctx.attempt == 1:
        os._exit(3)


# -- ways not to end


def sleep(message: Any, ctx: Context) -> None:
    note(message, "sleeping now")
    time.sleep(1000)


def sleep_once(message: Any, ctx: Context) -> None:
    if ctx.attempt == 1:
        sleep(message, ctx)


def hold_the_gil(message: Any, ctx: Context) -> None:
    note(message, "stuck now")
    library = ctypes.PyDLL(None)
    while True:  # a signal ends the sleep early
        library.sleep(1000)


def hold_the_gil_once(message: Any, ctx: Context) -> None:
    if ctx.attempt == 1:
        hold_the_gil(message, ctx)


def ignore_everything(message: Any, ctx: Context) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep(message, ctx)


def have_children(message: Any, ctx: Context) -> None:
    """Start one process and fork another. The fork holds all pipes open."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    forked = os.fork()
    if forked == 0:
        time.sleep(1000)
        os._exit(0)
    note(message, f"started {started.pid}")
    note(message, f"forked {forked}")
    if message.then == "exit":
        os._exit(3)
    globals()[message.then](message, ctx)


def clean_up(message: Any, ctx: Context) -> None:
    if ctx.checkpoint is not None:
        note(message, f"found {ctx.checkpoint}")
        return
    try:
        sleep(message, ctx)
    finally:
        ctx.beat(checkpoint={"saved": "while ending"})
        note(message, "cleaned up")


def finish_late(message: Any, ctx: Context) -> None:
    """Finish, but only after SIGTERM."""
    try:
        sleep(message, ctx)
    except BaseException:
        return


# -- requests to the worker


def beat_on(message: Any, ctx: Context) -> None:
    """Run longer than any limit of the test, but beat."""
    until = time.monotonic() + message.seconds
    while time.monotonic() < until:
        ctx.beat(progress=0.5)
        time.sleep(0.02)
    note(message, "moved on")


def beat_a_lot(message: Any, ctx: Context) -> None:
    for step in range(10_000):
        ctx.beat(step / 10_000)


def take_long(message: Any, ctx: Context) -> None:
    before = ctx.deadline
    time.sleep(message.seconds)
    ctx.raise_if_lost()
    note(message, f"renewed {ctx.deadline > before}")


def use_checkpoint(message: Any, ctx: Context) -> Any:
    note(message, f"found {ctx.checkpoint}")
    if ctx.attempt == 1:
        ctx.beat(0.5, {"step": 1})
        return Retry(0.0)
    return None


def save_large(message: Any, ctx: Context) -> Any:
    """Save the largest checkpoint the queue accepts, and one that is too large to send."""
    if ctx.attempt == 1:
        ctx.beat(checkpoint="x" * 1_000_000)
        return Retry(0.0)
    note(message, f"found {len(ctx.checkpoint)}")
    for size in (1_500_000, 3_000_000):
        try:
            ctx.beat(checkpoint="x" * size)
        except MessageTooLarge:
            note(message, f"refused {size}")
    return None


def save_nonsense(message: Any, ctx: Context) -> None:
    ctx.beat(checkpoint=object())


def wait_for_stopping(message: Any, ctx: Context) -> Any:
    note(message, "waiting now")
    return Retry(0.0, "saw it") if ctx.stopping.wait(60) else None


def tell_size(message: Any, ctx: Context) -> None:
    note(message, f"size {len(message.padding)}")


def tell_all(message: Any, ctx: Context) -> None:
    note(message, f"model {type(message).__name__}")
    note(message, f"fields {message.id} {message.attempts} {message.when.isoformat()}")
