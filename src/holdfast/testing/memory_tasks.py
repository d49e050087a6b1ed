"""What MemoryQueue keeps: tasks as immutable values, and the shelf they stand on.

    WaitingState ──claimed──▶ LeasedState ──completed──▶ FinishedState
     ▲   ▲                │ └─ claimed again once its time is up (the fence rises)
     │   └── put back ────┤
     └── redriven ── DeadState ◀─ dead-lettered, or out of attempts at the next claim

Times are the shelf's monotonic seconds, so a stepped wall clock expires nothing.
"""

import json
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import heappop, heappush
from threading import Lock
from typing import Any

from holdfast.core.clock import Clock, utc
from holdfast.core.queue.manager import MessageState, PastAttempt


@dataclass(frozen=True, slots=True)
class WaitingState:
    due_at: float


@dataclass(frozen=True, slots=True)
class LeasedState:
    worker_id: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class FinishedState:
    at: float


@dataclass(frozen=True, slots=True)
class DeadState:
    reason: str


_TASK_STATE = {
    WaitingState: MessageState.PENDING,
    LeasedState: MessageState.LEASED,
    FinishedState: MessageState.COMPLETED,
    DeadState: MessageState.FAILED,
}


@dataclass(frozen=True, slots=True)
class MemoryTask:
    """One push of one id. Every transition returns a new value."""

    key: str
    number: int  # in the order of pushing
    id: str
    body: bytes
    state: WaitingState | LeasedState | FinishedState | DeadState
    fence: int = 0  # claims so far: rises with each, never falls
    refunds: int = 0  # claims that are not charged as attempts
    saved: bytes | None = None  # the checkpoint of the attempt at hand
    inherited: bytes | None = None  # the newest checkpoint of the attempts before it
    past: tuple[PastAttempt, ...] = ()

    @property
    def attempts(self) -> int:
        return self.fence - self.refunds

    @property
    def task_state(self) -> MessageState:
        return _TASK_STATE[type(self.state)]

    @property
    def claimable_at(self) -> float | None:
        match self.state:
            case WaitingState(due_at=at) | LeasedState(until=at):
                return at
        return None

    @property
    def checkpoint(self) -> bytes | None:
        return self.inherited if self.saved is None else self.saved

    def claimed(self, held: LeasedState) -> "MemoryTask":
        fence, inherited = self.fence + 1, self.checkpoint
        return replace(self, state=held, fence=fence, saved=None, inherited=inherited)

    def put_back(self, due_at: float, *, charged: bool) -> "MemoryTask":
        refunds = self.refunds if charged else self.refunds + 1
        return replace(self, state=WaitingState(due_at), refunds=refunds)

    def completed(self, at: float) -> "MemoryTask":
        return replace(self, state=FinishedState(at), saved=None, inherited=None)

    def dead(self, reason: str) -> "MemoryTask":
        return replace(self, state=DeadState(reason))

    def redriven(self, due_at: float) -> "MemoryTask":
        """Attempts from 0; the fence goes on rising, so no zombie comes back to life."""
        return replace(self, state=WaitingState(due_at), refunds=self.fence)

    def noting(
        self, outcome: str, at: datetime, reason: str, detail: str | None = None
    ) -> "MemoryTask":
        """Remember how the attempt at hand ended."""
        worker_id = self.state.worker_id if isinstance(self.state, LeasedState) else ""
        attempt = PastAttempt(self.attempts, outcome, at, worker_id, reason, detail)
        return replace(self, past=(*self.past, attempt))


class TaskTable:
    """All tasks of one queue, and its clock. Hold `lock` around every method."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lock = Lock()
        self.workers = 0
        self._pushes = 0
        self._tasks: dict[str, MemoryTask] = {}
        self._keys_of: dict[str, dict[str, None]] = {}  # by message id, in order
        # Heaps of (claimable_at, number, key). An entry outlives the state it was made
        # for; one whose time is not its task's any more is skipped when it comes up.
        self._waiting: list[tuple[float, int, str]] = []
        self._held: list[tuple[float, int, str]] = []

    @property
    def entries(self) -> int:
        """How much there is to look through, outdated or not."""
        return len(self._waiting) + len(self._held)

    def next_number(self) -> int:
        self._pushes += 1
        return self._pushes

    def put(self, task: MemoryTask) -> None:
        """A new task, or the new value of one."""
        old = self._tasks.get(task.key)
        self._tasks[task.key] = task
        self._keys_of.setdefault(task.id, {})[task.key] = None
        if old is not None and (old.state, old.fence) == (task.state, task.fence):
            return  # only a note was made: it is in its heap already
        match task.state:
            case WaitingState(due_at=at):
                heappush(self._waiting, (at, task.number, task.key))
            case LeasedState(until=at):
                heappush(self._held, (at, task.number, task.key))

    def remove(self, task: MemoryTask) -> None:
        del self._tasks[task.key]
        keys = self._keys_of[task.id]
        del keys[task.key]
        if not keys:
            del self._keys_of[task.id]

    def get(self, key: str) -> MemoryTask | None:
        return self._tasks.get(key)

    def pop_claimable(self, now: float) -> MemoryTask | None:
        """The next to claim, expired leases first: they have waited longest.

        The caller must `put` it in a new state, or it is never offered again.
        """
        return self._pop(self._held, now) or self._pop(self._waiting, now)

    def _pop(self, heap: list[tuple[float, int, str]], now: float) -> MemoryTask | None:
        while heap and heap[0][0] <= now:
            at, _, key = heappop(heap)
            task = self._tasks.get(key)
            if task is not None and task.claimable_at == at:
                return task
        return None

    def all(self) -> list[MemoryTask]:
        return list(self._tasks.values())

    def of(self, message_id: str) -> list[MemoryTask]:
        return [self._tasks[key] for key in self._keys_of.get(message_id, ())]

    def is_known(self, message_id: str) -> bool:
        """For dedupe: waiting, held or finished. A dead letter may be pushed anew."""
        return any(not isinstance(task.state, DeadState) for task in self.of(message_id))

    def wall(self, at: float) -> datetime:
        """One of our times as people read it."""
        return utc(self.clock.time() - self.clock.monotonic() + at)


def plain(body: bytes) -> dict[str, Any] | None:
    """The bytes as a JSON object, None when they are none."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
