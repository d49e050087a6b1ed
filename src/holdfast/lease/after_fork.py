"""Callbacks in forked children. A child must not reuse its parent's nonces, ids and locks."""

import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_callbacks: "WeakKeyDictionary[object, Callable[..., None]]" = WeakKeyDictionary()


def run_after_fork(instance: T, callback: Callable[[T], None]) -> None:
    """Call `callback(instance)` in every forked child, for as long as `instance` exists."""
    _register()
    _callbacks[instance] = callback


@cache
def _register() -> None:
    os.register_at_fork(after_in_child=_run_callbacks)


def _run_callbacks() -> None:
    for instance, callback in list(_callbacks.items()):
        callback(instance)
