"""The console behind the pages: the queues that it watches, and what it may do to them."""

import getpass
import logging
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

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
        self.queues = _watch_queues(queues, clock)
        self._sampler = BackgroundLoop("holdfast-web", self._sample, clock)

    def start(self) -> None:
        """Begin to record how deep the queues are. Calling it again does nothing."""
        self._sampler.start()

    def close(self) -> None:
        """Stop recording, and close the queues."""
        self._sampler.stop()
        for queue in self.queues.values():
            queue.close()

    def _sample(self) -> float:
        for queue in self.queues.values():
            queue.counts.get()
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


def _watch_queues(
    queues: Sequence[str | QueueManager[Any]], clock: Clock
) -> Mapping[str, QueueWatch]:
    """Return the queues by the words that name them in addresses."""
    named: dict[str, QueueWatch] = {}
    for queue in queues:
        # A console never creates a queue: a mistyped name would look like an empty one.
        name, opening = str(queue), partial(open_queue, str(queue), create=False)
        if isinstance(queue, QueueManager):
            name, opening = queue.name, partial(lambda queue: queue, queue)
        base = "-".join(re.findall(r"[A-Za-z0-9]+", name)[-3:]).lower() or "queue"
        slug, number = base, 2
        while slug in named:
            slug, number = f"{base}-{number}", number + 1
        named[slug] = QueueWatch(name, opening, clock, slug)
    return named
