"""Handlers for workers that the bench starts; at module level, so that processes find them."""

import time
from pathlib import Path

from bench.payload import BenchTask
from holdfast.core.worker.context import Context


def nothing(message: BenchTask, ctx: Context) -> None:
    """The work that costs nothing, to see what the worker costs."""


def endless(message: BenchTask, ctx: Context) -> None:
    """Says by the file named in the note that it has begun, and never ends by itself."""
    Path(message.note).touch()
    while not ctx.lost.is_set():
        time.sleep(0.05)
