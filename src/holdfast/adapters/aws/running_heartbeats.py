"""The running heartbeats of this process, so that all of them can be stopped."""

import atexit
import os
from functools import cache
from threading import Lock
from typing import Protocol
from weakref import WeakSet


class Stoppable(Protocol):
    """A heartbeat that can be stopped."""

    def end(self) -> None:
        """Make no further call, and do not wait for one in progress."""

    def stop(self) -> None:
        """Make no further call, and wait for one in progress."""


_running: WeakSet[Stoppable] = WeakSet()

# The lock is taken around a fork, so that a child never inherits it locked.
_lock = Lock()
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


def discard_in_child(heartbeat: Stoppable) -> None:
    """Remove a heartbeat in a forked child.

    This takes no lock, because the order of the callbacks after a fork is unknown.
    """
    _running.discard(heartbeat)


def stop_all() -> int:
    """Stop all heartbeats that still run in this process, and return their number.

    Call it at the start and at the end of a Lambda handler. Lambda freezes a heartbeat that
    an invocation leaves running, and the next invocation thaws it; it would then extend a
    message that was settled long ago.
    """
    heartbeats = _list_running()
    for heartbeat in heartbeats:  # end all first, so that their last calls finish in parallel
        heartbeat.end()
    for heartbeat in heartbeats:
        heartbeat.stop()
    return len(heartbeats)


def _list_running() -> list[Stoppable]:
    with _lock:
        return list(_running)


@cache
def _end_all_at_exit() -> None:
    atexit.register(_end_all)


def _end_all() -> None:
    """End all without waiting, because heartbeats must not delay the interpreter's exit."""
    for heartbeat in _list_running():
        heartbeat.end()
