"""The running heartbeats of this process, so that all of them can be stopped."""

import atexit
import os
from functools import cache
from threading import RLock
from typing import Protocol
from weakref import WeakSet


class Stoppable(Protocol):
    """A heartbeat that can be stopped."""

    def end(self) -> None:
        """Make no further call, and do not wait for one in progress."""

    def stop(self) -> None:
        """Make no further call, and wait for one in progress."""


_running: WeakSet[Stoppable] = WeakSet()

# The lock is taken around a fork, so that a child never inherits it from another thread. It
# is reentrant, so that heartbeats can be removed in the child before it is released.
_lock = RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release)
os.register_at_fork(after_in_child=_lock.release)


def add(heartbeat: Stoppable) -> None:
    """Add a heartbeat that starts to run."""
    _end_all_at_exit()
    with _lock:
        _running.add(heartbeat)


def discard(heartbeat: Stoppable) -> None:
    """Remove a heartbeat that has ended. Does nothing if it was removed before."""
    with _lock:
        _running.discard(heartbeat)


def stop_all() -> int:
    """Stop all heartbeats that still run in this process, and return their number.

    Call it at the start and at the end of a Lambda handler. Lambda freezes a heartbeat that
    an invocation leaves running, and the next invocation thaws it; it would then extend a
    message that was settled long ago.
    """
    heartbeats = end_all()  # all first, so that their last calls finish in parallel
    for heartbeat in heartbeats:
        heartbeat.stop()
    return len(heartbeats)


def end_all() -> list[Stoppable]:
    """End all heartbeats without waiting, and return them."""
    with _lock:
        heartbeats = list(_running)
    for heartbeat in heartbeats:
        heartbeat.end()
    return heartbeats


@cache
def _end_all_at_exit() -> None:
    # Without waiting, because heartbeats must not delay the interpreter's exit.
    atexit.register(end_all)
