"""Handlers for the bench's workers, at module level so that processes can import them."""

import time
from pathlib import Path

from bench.payload import BenchTask
from holdfast.worker.runner import Context


def nothing(message: BenchTask, ctx: Context) -> None:
    """Do nothing, to measure the cost of the worker."""


def endless(message: BenchTask, ctx: Context) -> None:
    """Create the file named in the note, and never end."""
    Path(message.note).touch()
    while not ctx.lost.is_set():
        time.sleep(0.05)
