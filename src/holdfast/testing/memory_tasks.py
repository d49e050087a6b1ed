"""The state of a MemoryQueue: tasks as immutable values, and the table that holds them.

    WaitingState ──claimed──▶ LeasedState ──completed──▶ FinishedState
     ▲   ▲                │ └─ claimed again after its time is over (the fence rises)
     │   └── returned ────┤
     └── redriven ── DeadState ◀─ dead-lettered, cancelled, or out of attempts at a claim

Times are monotonic seconds of the table's clock, so a change of the wall clock expires no
lease.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import heappop, heappush
from threading import Lock
from typing import Any
from weakref import WeakSet

from holdfast.core.clock import Clock, to_utc
from holdfast.core.lease.lease import Lease
from holdfast.core.queue.manager import (
    Holder,
    MessageInfo,
    MessageState,
    PastAttempt,
    QueueStats,
)
from holdfast.core.queue.message import Headers

# After a claim, a worker passes the lease to its keeper within this time.
_HAND_OVER_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class WaitingState:
    """The task waits until it is due."""

    due_at: float


@dataclass(frozen=True, slots=True)
class LeasedState:
    """A worker holds the task."""

    worker_id: str
    since: float
    until: float
    beat_at: float | None = None  # as they were at the last renewal
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class FinishedState:
    """The task was acked."""

    at: float


@dataclass(frozen=True, slots=True)
class DeadState:
    """The task is a dead letter."""

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
    fence: int = 0  # claims so far; it rises with each and never falls
    refunds: int = 0  # claims that are not charged as attempts
    saved: bytes | None = None  # the checkpoint of the current attempt
    inherited: bytes | None = None  # the newest checkpoint of the attempts before it
    past: tuple[PastAttempt, ...] = ()
    result: bytes | None = None  # of the current attempt; counts when the task is finished
    headers: Headers | None = None

    @property
    def attempts(self) -> int:
        """The number of claims that count as attempts."""
        return self.fence - self.refunds

    @property
    def task_state(self) -> MessageState:
        """The state that the queue reports."""
        return _TASK_STATE[type(self.state)]

    @property
    def claimable_at(self) -> float | None:
        """When the task can be claimed, or None if it has ended."""
        match self.state:
            case WaitingState(due_at=at) | LeasedState(until=at):
                return at
        return None

    @property
    def checkpoint(self) -> bytes | None:
        """The newest checkpoint."""
        return self.inherited if self.saved is None else self.saved

    def claimed(self, lease: LeasedState) -> "MemoryTask":
        """Return the task with this lease and the next fence."""
        fence, inherited = self.fence + 1, self.checkpoint
        return replace(
            self, state=lease, fence=fence, saved=None, inherited=inherited, result=None
        )

    def returned(self, due_at: float, *, charged: bool) -> "MemoryTask":
        """Return the task as waiting; if it is not charged, the claim is no attempt."""
        refunds = self.refunds if charged else self.refunds + 1
        return replace(self, state=WaitingState(due_at), refunds=refunds)

    def completed(self, at: float) -> "MemoryTask":
        """Return the task as finished, without its checkpoints."""
        return replace(self, state=FinishedState(at), saved=None, inherited=None)

    def dead_lettered(self, reason: str) -> "MemoryTask":
        """Return the task as a dead letter."""
        return replace(self, state=DeadState(reason))

    def cancelled(self, reason: str) -> "MemoryTask":
        """Return the task as a dead letter whose fence refuses its holder, if it has one.

        The attempts stay as they are.
        """
        fence, refunds = self.fence + 1, self.refunds + 1
        return replace(self, state=DeadState(reason), fence=fence, refunds=refunds)

    def redriven(self, due_at: float) -> "MemoryTask":
        """Return the dead letter as a waiting task whose attempts count from 0.

        Its fence keeps rising, so the lease of a stale holder does not become valid again.
        """
        return replace(self, state=WaitingState(due_at), refunds=self.fence)

    def with_note(
        self, outcome: str, at: datetime, reason: str, detail: str | None = None
    ) -> "MemoryTask":
        """Return the task with a note of how the current attempt ended."""
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
        # for. If its time is no longer that of its task, it is skipped when it comes up.
        self._waiting: list[tuple[float, int, str]] = []
        self._leased: list[tuple[float, int, str]] = []
        self.leases: WeakSet[Lease] = WeakSet()  # those that were handed out

    @property
    def entries(self) -> int:
        """The number of heap entries, outdated or not."""
        return len(self._waiting) + len(self._leased)

    def next_number(self) -> int:
        """Return the number of the next push."""
        self._pushes += 1
        return self._pushes

    def put(self, task: MemoryTask) -> None:
        """Store a new task, or the new value of a task."""
        old = self._tasks.get(task.key)
        self._tasks[task.key] = task
        self._keys_of.setdefault(task.id, {})[task.key] = None
        if old is not None and (old.state, old.fence) == (task.state, task.fence):
            return  # only its notes changed, so its heap entry is still right
        match task.state:
            case WaitingState(due_at=at):
                heappush(self._waiting, (at, task.number, task.key))
            case LeasedState(until=at):
                heappush(self._leased, (at, task.number, task.key))

    def remove(self, task: MemoryTask) -> None:
        """Remove a task."""
        del self._tasks[task.key]
        keys = self._keys_of[task.id]
        del keys[task.key]
        if not keys:
            del self._keys_of[task.id]

    def get(self, key: str) -> MemoryTask | None:
        """Return the task with this key, or None."""
        return self._tasks.get(key)

    def pop_claimable(self, now: float) -> MemoryTask | None:
        """Return the next task to claim, expired leases first, because they waited longest.

        The caller must `put` it in a new state, or it is never offered again.
        """
        return self._pop(self._leased, now) or self._pop(self._waiting, now)

    def _pop(self, heap: list[tuple[float, int, str]], now: float) -> MemoryTask | None:
        if (task := self._peek(heap)) is None or heap[0][0] > now:
            return None
        heappop(heap)
        return task

    def find_next_claim(self) -> float | None:
        """Return when the next task can be claimed, or None if no task ever can.

        While a keeper renews a lease, its message is being worked on, so the answer is None.
        """
        if any(lease.live and lease.is_watched for lease in self.leases):
            return None
        heaps = (self._waiting, self._leased)
        return min((heap[0][0] for heap in heaps if self._peek(heap)), default=None)

    def has_new_claim(self) -> bool:
        """Return whether a task was claimed just now, and no keeper renews its lease yet."""
        since = self.clock.monotonic() - _HAND_OVER_SECONDS
        watched = {(lease.handle, lease.fence) for lease in self.leases if lease.is_watched}
        claimed = filter(None, (self._tasks.get(key) for _, _, key in self._leased))
        return any(
            isinstance(task.state, LeasedState)
            and task.state.since > since
            and (task.key, task.fence) not in watched
            for task in claimed
        )

    def _peek(self, heap: list[tuple[float, int, str]]) -> MemoryTask | None:
        """Return the first task of the heap, after removing outdated entries before it."""
        while heap:
            at, _, key = heap[0]
            task = self._tasks.get(key)
            if task is not None and task.claimable_at == at:
                return task
            heappop(heap)
        return None

    def list_tasks(self) -> list[MemoryTask]:
        """Return all tasks, in the order of pushing."""
        return list(self._tasks.values())

    def find_tasks(self, message_id: str) -> list[MemoryTask]:
        """Return the tasks with this message id, in the order of pushing."""
        return [self._tasks[key] for key in self._keys_of.get(message_id, ())]

    def is_known(self, message_id: str) -> bool:
        """Return whether dedupe refuses the id: it is waiting, leased or finished.

        A dead letter may be pushed again.
        """
        tasks = self.find_tasks(message_id)
        return any(not isinstance(task.state, DeadState) for task in tasks)

    def to_wall_time(self, at: float) -> datetime:
        """Convert a monotonic time of this table to wall time."""
        return to_utc(self.clock.time() - self.clock.monotonic() + at)


def parse_body(body: bytes) -> dict[str, Any] | None:
    """Return the bytes as a JSON object, or None if they are not one."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


# -- statistics and details, as pure functions of the tasks


def compute_stats(tasks: Iterable[MemoryTask], now: float) -> QueueStats:
    """Count the tasks by state."""
    count = dict.fromkeys(MessageState, 0)
    ready_since = []
    expired = 0
    for task in tasks:
        count[task.task_state] += 1
        match task.state:
            case WaitingState(due_at=due_at) if due_at <= now:
                ready_since.append(due_at)
            case LeasedState(until=until) if until <= now:
                expired += 1
    return QueueStats(
        ready=len(ready_since),
        delayed=count[MessageState.PENDING] - len(ready_since),
        leased=count[MessageState.LEASED],
        expired=expired,
        completed=count[MessageState.COMPLETED],
        failed=count[MessageState.FAILED],
        oldest_ready_seconds=now - min(ready_since) if ready_since else None,
    )


def make_message_info(task: MemoryTask, queue: str, table: TaskTable) -> MessageInfo:
    """Describe a task for an operator."""
    state = task.state
    return MessageInfo(
        id=task.id,
        key=task.key,
        state=task.task_state,
        attempts=task.attempts,
        fence=task.fence,
        where=f"memory:{queue}/{task.task_state.value}/{task.key}",
        due_at=table.to_wall_time(state.due_at) if isinstance(state, WaitingState) else None,
        holder=_make_holder(task, state, table) if isinstance(state, LeasedState) else None,
        reason=state.reason if isinstance(state, DeadState) else None,
        past=task.past,
        checkpoint=json.loads(task.checkpoint) if task.checkpoint else None,
        body=parse_body(task.body),
    )


def _make_holder(task: MemoryTask, lease: LeasedState, table: TaskTable) -> Holder:
    return Holder(
        worker_id=lease.worker_id,
        timestamp=table.to_wall_time(lease.since),
        attempt=task.attempts,
        expires_at=table.to_wall_time(lease.until),
        pid=os.getpid(),
        beat_at=None if lease.beat_at is None else table.to_wall_time(lease.beat_at),
        progress=lease.progress,
    )
