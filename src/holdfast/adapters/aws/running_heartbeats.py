"""Which heartbeats of this process are beating, so that none is forgotten."""

import atexit
import os
from functools import cache
from threading import Lock
from typing import Protocol
from weakref import WeakSet


class Stoppable(Protocol):
    def end(self) -> None:
        """Make no further call; do not wait for one under way."""

    def stop(self) -> None:
        """The same, and wait."""


_beating: WeakSet[Stoppable] = WeakSet()

# A fork must not inherit the lock held.
_listing = Lock()
os.register_at_fork(before=_listing.acquire, after_in_parent=_listing.release)
os.register_at_fork(after_in_child=_listing.release)


def add(heartbeat: Stoppable) -> None:
    _end_all_at_exit()
    with _listing:
        _beating.add(heartbeat)


def discard(heartbeat: Stoppable) -> None:
    with _listing:
        _beating.discard(heartbeat)


def discard_in_child(heartbeat: Stoppable) -> None:
    """Takes no lock: which of the callbacks after a fork comes first is not known."""
    _beating.discard(heartbeat)


def stop_all() -> int:
    """Stop every heartbeat of this process that was left running; how many there were.

    For the entry and the exit of a Lambda handler: what an invocation leaves running is
    frozen with it, and beats for a message of the past when the next one thaws it.
    """
    heartbeats = _all()
    for heartbeat in heartbeats:  # all at first, so that their last calls end side by side
        heartbeat.end()
    for heartbeat in heartbeats:
        heartbeat.stop()
    return len(heartbeats)


def _all() -> list[Stoppable]:
    with _listing:
        return list(_beating)


@cache
def _end_all_at_exit() -> None:
    atexit.register(_end_all)


def _end_all() -> None:
    """Without waiting: a daemon thread never keeps the interpreter from ending."""
    for heartbeat in _all():
        heartbeat.end()
