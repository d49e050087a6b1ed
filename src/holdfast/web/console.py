"""The console behind the pages: the queues that it watches, and what it may do to them."""

import getpass
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import Lock
from typing import Any, Generic, TypeVar

from starlette.requests import Request

from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock
from holdfast.queue.manager import QueueManager
from holdfast.queue.watch import QueueWatch
from holdfast.queues.opening import open_queue
from holdfast.text import strip_control_characters
from holdfast.web.guard import AUTHOR, Sessions

_SAMPLE_SECONDS = 15.0
_MAX_LOGGED = 10_000  # characters of one fact: a page of ids, unless these are hostile
_log = logging.getLogger("holdfast.web")


@dataclass(frozen=True, slots=True)
class WatchedQueue:
    """A queue with the word that names it in addresses."""

    slug: str
    watch: QueueWatch

    @property
    def name(self) -> str:
        """The queue's name as it was given."""
        return self.watch.name

    def count_failed(self) -> int | None:
        """Return the number of dead letters, or None if it is not known yet."""
        counts = self.watch.counts.get()
        return counts.stats.failed if counts and counts.stats else None


class Console:
    """What all requests share."""

    def __init__(
        self,
        queues: Sequence[str | QueueManager[Any]],
        sessions: Sessions,
        *,
        allow_actions: bool,
        show_bodies: bool,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.sessions, self.clock = sessions, clock
        self.allow_actions, self.show_bodies = allow_actions, show_bodies
        self.queues: Mapping[str, WatchedQueue] = _name_queues(
            [_watch(queue, clock) for queue in queues]
        )
        self._sampler = BackgroundLoop("holdfast-web", self._sample, clock)

    def start(self) -> None:
        """Begin to record how deep the queues are. Calling it again does nothing."""
        self._sampler.start()

    def close(self) -> None:
        """Stop recording, and close the queues."""
        self._sampler.stop()
        for queue in self.queues.values():
            queue.watch.close()

    def _sample(self) -> float:
        for queue in self.queues.values():
            queue.watch.counts.get()
        return self.clock.monotonic() + _SAMPLE_SECONDS if self.queues else inf

    def get_author(self, request: Request) -> str:
        """Return the name for the log: that of the login, or the user who runs the console."""
        name = request.scope[AUTHOR] or _get_user_name()
        client = request.client.host if request.client else "an unknown address"
        return f"{strip_control_characters(name)} from {client}"

    def log_action(self, request: Request, action: str, **facts: object) -> None:
        """Log an action with its author. Ids and reasons may be hostile text."""
        values = {"author": self.get_author(request), **facts}
        text = " ".join(f"{name}={repr(value)[:_MAX_LOGGED]}" for name, value in values.items())
        _log.warning("%s %s", action, text)


def _get_user_name() -> str:
    """Return the user who runs the console. In a container that user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _watch(queue: str | QueueManager[Any], clock: Clock) -> QueueWatch:
    if isinstance(queue, QueueManager):
        return QueueWatch(queue.name, lambda: queue, clock)
    # A console never creates a queue: a mistyped name would look like an empty one.
    return QueueWatch(queue, partial(open_queue, queue, create=False), clock)


def _name_queues(watches: Sequence[QueueWatch]) -> dict[str, WatchedQueue]:
    named: dict[str, WatchedQueue] = {}
    for watch in watches:
        words = re.findall(r"[A-Za-z0-9]+", watch.name)
        base = "-".join(words[-3:]).lower() or "queue"
        slug, number = base, 2
        while slug in named:
            slug, number = f"{base}-{number}", number + 1
        named[slug] = WatchedQueue(slug, watch)
    return named


# -- the stores of products


T = TypeVar("T", bound=Any)  # it has `close`


class LazyStore(Generic[T]):
    """A store that is opened with the first read, and again until that succeeds.

    So a store may be created after the console was started. Safe for threads.
    """

    def __init__(self, open_store: Callable[[], T]) -> None:
        self._open, self._lock = open_store, Lock()
        self._store: T | None = None

    def get(self) -> T:
        """Return the open store. Raises HoldfastError if it cannot be opened."""
        with self._lock:
            if self._store is None:
                self._store = self._open()
            return self._store

    def close(self) -> None:
        """Close the store. Reads that come later open it again."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()
