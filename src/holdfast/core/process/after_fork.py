"""A forked child must not go on as its parent: same nonces, same worker, locked locks."""

import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_reborn: "WeakKeyDictionary[object, Callable[..., None]]" = WeakKeyDictionary()


def run_after_fork(thing: T, become: Callable[[T], None]) -> None:
    """Call `become(thing)` in every child forked from here while `thing` lives."""
    _register()
    _reborn[thing] = become


@cache
def _register() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    for thing, become in list(_reborn.items()):
        become(thing)
