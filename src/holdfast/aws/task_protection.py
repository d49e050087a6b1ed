"""Keeps ECS from ending this task by scale-in or a deployment while it holds messages.

    first claim ──▶ protected ──▶ renewed every half hour ──▶ none held for a minute ──▶ cleared

The agent of ECS beside the container takes the requests, at $ECS_AGENT_URI. ECS may choose the
task between a claim and the agent's answer. The worker then gets SIGTERM and drains as usual,
so protection saves repeated work and nothing depends on it.
"""

import json
import logging
from http.client import HTTPConnection, HTTPException
from math import inf
from threading import Lock
from typing import Any, Self
from urllib.parse import urlsplit

from holdfast.errors import ConfigError
from holdfast.events import END_EVENTS, Claimed, Event
from holdfast.lease.background import BackgroundLoop
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

_PATH = "/task-protection/v1/state"
_EXPIRES_MINUTES = 60  # after a crash of the worker the task is not protected for longer
_RENEW_SECONDS = _EXPIRES_MINUTES * 60 / 2
# ECS limits the rate of changes, and a worker with short messages holds none every few moments.
_LINGER_SECONDS = 60.0
_RETRY_SECONDS = 10.0
_CALL_SECONDS = 5.0

_log = logging.getLogger("holdfast")


class TaskProtection:
    """A subscriber that protects the task while messages are held, as a context manager.

    A request that fails is logged once and repeated. It never fails the work.
    """

    def __init__(self, agent_uri: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        address = urlsplit(agent_uri)
        if address.scheme != "http" or not address.hostname:
            raise ConfigError(f"ECS_AGENT_URI must be an http:// URL; got {agent_uri!r}")
        self._address = address
        self._clock = clock
        self._lock = Lock()
        self._held: set[tuple[str, str, int]] = set()
        self._idle_since = -inf
        self._is_protected = False
        self._renew_at = -inf
        self._retry_at = -inf
        self._last_error = ""
        self._loop = BackgroundLoop("holdfast-task-protection", self.tick, clock)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Claimed):
            with self._lock:
                self._held.add((event.queue, event.message_id, event.attempt))
                is_change = len(self._held) == 1
        elif isinstance(event, END_EVENTS):
            with self._lock:
                was_held = bool(self._held)
                self._held.discard((event.queue, event.message_id, event.attempt))
                if is_change := was_held and not self._held:
                    self._idle_since = self._clock.monotonic()
        else:
            return
        if is_change:
            self._loop.wake()

    def tick(self) -> float:
        """Tell the agent what has changed, and return the monotonic time of the next pass."""
        now = self._clock.monotonic()
        with self._lock:
            is_held = bool(self._held)
            clear_at = inf if is_held else self._idle_since + _LINGER_SECONDS
        is_needed = is_held or (self._is_protected and now < clear_at)
        is_due = is_needed != self._is_protected or (is_needed and now >= self._renew_at)
        if is_due and now >= self._retry_at:
            self._request(is_needed, now)
        if self._retry_at > now:
            return self._retry_at
        return min(self._renew_at, clear_at) if self._is_protected else inf

    def _request(self, protect: bool, asked_at: float) -> None:
        try:
            self._put(protect)
        except (OSError, HTTPException, ValueError) as error:
            self._retry_at = asked_at + _RETRY_SECONDS
            if (text := str(error)) != self._last_error:
                _log.warning("task_protection_failed protect=%s error=%s", protect, text)
                self._last_error = text
            return
        self._is_protected = protect
        self._renew_at = asked_at + _RENEW_SECONDS
        self._retry_at, self._last_error = -inf, ""

    def _put(self, protect: bool) -> None:
        """Make the request. Raises OSError, HTTPException, or ValueError if ECS refuses it."""
        address = self._address
        # Not urllib, which would send the request to a proxy that the environment names.
        connection = HTTPConnection(
            str(address.hostname), address.port or 80, timeout=_CALL_SECONDS
        )
        body: dict[str, Any] = {"ProtectionEnabled": protect}
        if protect:
            body["ExpiresInMinutes"] = _EXPIRES_MINUTES
        headers = {"Content-Type": "application/json"}
        try:
            path = address.path.rstrip("/") + _PATH
            connection.request("PUT", path, json.dumps(body), headers)
            check_response(connection.getresponse().read(), protect)
        finally:
            connection.close()

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        if self._is_protected:
            self._request(False, self._clock.monotonic())


def check_response(response: bytes, protect: bool) -> None:
    """Raise ValueError unless the agent confirms the request.

    A refusal of ECS is `failure`, and may come with the status 200. An invalid request, or one
    that the role does not allow, is `error`.
    """
    match json.loads(response):
        case {"protection": {"ProtectionEnabled": state}} if state is protect:
            return
        case {"failure": {"Reason": str(reason)}}:
            raise ValueError(f"ECS refused: {reason}")
        case {"error": {"Code": str(code)}}:
            raise ValueError(f"ECS refused: {code}; the role needs ecs:UpdateTaskProtection")
    raise ValueError("the agent of ECS sent an answer without protection, failure or error")
