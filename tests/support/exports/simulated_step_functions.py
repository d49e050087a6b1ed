"""A simulation of Step Functions: tokens, two timeouts, and the errors of the service.

    open ──▶ OPEN ─┬─ success or failure was accepted ───────▶ CLOSED
                   ├─ no heartbeat for heartbeat_seconds ────▶ TIMED_OUT
                   └─ timeout_seconds since it was opened ───▶ TIMED_OUT, even with heartbeats

A call with a token that is not open any more gets TaskTimedOut, whatever ended it. Amazon
does the same, so the code alone decides nothing. A token that was never issued gets
InvalidToken.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from math import inf
from threading import Lock
from typing import Any, Literal

from holdfast.exports.errors import CallbackRefused, CallbackUnclear, TokenClosed
from holdfast.exports.model import TaskToken
from holdfast.lease.clock import SYSTEM_CLOCK, Clock

Kind = Literal["success", "failure", "heartbeat"]


class TokenState(Enum):
    """The state of a task token."""

    OPEN = "open"
    CLOSED = "closed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class AcceptedCallback:
    """A callback that the service accepted, at a time of the monotonic clock."""

    kind: Kind
    token: TaskToken
    at: float = 0.0
    output: Mapping[str, Any] | None = None
    error: str = ""
    cause: str = ""


@dataclass(slots=True)
class _Task:
    opened_at: float
    heartbeat_seconds: float
    timeout_seconds: float
    heard_at: float
    closed: bool = False
    heartbeats: list[float] = field(default_factory=list)

    def compute_timeout_at(self) -> float:
        return min(
            self.heard_at + self.heartbeat_seconds, self.opened_at + self.timeout_seconds
        )

    def get_state(self, now: float) -> TokenState:
        if self.closed:
            return TokenState.CLOSED
        return TokenState.TIMED_OUT if now >= self.compute_timeout_at() else TokenState.OPEN


class SimulatedStepFunctions:
    """A StepFunctions that keeps the rules of the service and fails on request.

    Faults are used up one per call, in the order in which they were added: `throttle(3)`
    refuses the next three calls, `deny(1)` answers InvalidToken to one call whatever its token
    is, and `lose_replies(2)` acts on two calls without a response. While `down` is True, it
    neither acts nor responds. Safe to share between threads.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.down = False
        self.calls = 0
        self.accepted: list[AcceptedCallback] = []
        self._clock = clock
        self._tasks: dict[TaskToken, _Task] = {}
        self._faults: deque[Literal["throttle", "deny", "lose"]] = deque()
        self._lock = Lock()

    # -- the state machine's side

    def open(
        self, *, heartbeat_seconds: float = inf, timeout_seconds: float = inf
    ) -> TaskToken:
        """Enter a state that waits for a new token, and return the token.

        Both timeouts run from now on.
        """
        now = self._clock.monotonic()
        with self._lock:
            token = TaskToken(f"simulated-task-{len(self._tasks)}")
            self._tasks[token] = _Task(now, heartbeat_seconds, timeout_seconds, now)
        return token

    def state(self, token: TaskToken) -> TokenState:
        """Return the state of that token."""
        with self._lock:
            return self._tasks[token].get_state(self._clock.monotonic())

    def heartbeats(self, token: TaskToken) -> list[float]:
        """Return when the service accepted heartbeats of that token."""
        with self._lock:
            return list(self._tasks[token].heartbeats)

    def measure_max_gap(self, token: TaskToken) -> float:
        """Return the longest time without a heartbeat since the state was entered."""
        with self._lock:
            task = self._tasks[token]
            heard = [task.opened_at, *task.heartbeats, self._clock.monotonic()]
        return max(later - earlier for earlier, later in pairwise(heard))

    # -- faults

    def throttle(self, calls: int = 1) -> None:
        """Refuse so many calls."""
        self._faults.extend(["throttle"] * calls)

    def deny(self, calls: int = 1) -> None:
        """Answer InvalidToken to so many calls, though their tokens may be open."""
        self._faults.extend(["deny"] * calls)

    def lose_replies(self, calls: int = 1) -> None:
        """Act on so many calls and lose the response."""
        self._faults.extend(["lose"] * calls)

    # -- the callbacks

    def send_task_success(self, token: TaskToken, output: Mapping[str, Any]) -> None:
        """Close the token with a success."""
        self._call(AcceptedCallback("success", token, output=dict(output)))

    def send_task_failure(self, token: TaskToken, error: str, cause: str) -> None:
        """Close the token with a failure."""
        self._call(AcceptedCallback("failure", token, error=error, cause=cause))

    def send_task_heartbeat(self, token: TaskToken) -> None:
        """Restart the heartbeat timeout."""
        self._call(AcceptedCallback("heartbeat", token))

    def _call(self, callback: AcceptedCallback) -> None:
        with self._lock:
            self.calls += 1
            if self.down:
                raise CallbackUnclear("Step Functions did not respond (down)")
            fault = self._faults.popleft() if self._faults else None
            if fault == "throttle":
                raise CallbackRefused("Step Functions refused the call (ThrottlingException)")
            if fault == "deny":
                raise TokenClosed("InvalidToken")
            self._accept(callback)
            if fault == "lose":
                raise CallbackUnclear("Step Functions did not respond (reply lost)")

    def _accept(self, callback: AcceptedCallback) -> None:
        now = self._clock.monotonic()
        if (task := self._tasks.get(callback.token)) is None:
            raise TokenClosed("InvalidToken")
        if task.get_state(now) is not TokenState.OPEN:
            raise TokenClosed("TaskTimedOut")
        if callback.kind == "heartbeat":
            task.heard_at = now
            task.heartbeats.append(now)
        else:
            task.closed = True
        self.accepted.append(replace(callback, at=now))
