"""What people see of a memory queue: pure functions of its tasks."""

import json
import os
from collections.abc import Iterable

from holdfast.core.queue.manager import Holder, MessageInfo, MessageState, QueueStats
from holdfast.testing.memory_tasks import (
    DeadState,
    LeasedState,
    MemoryTask,
    TaskTable,
    WaitingState,
    plain,
)


def stats_of(tasks: Iterable[MemoryTask], now: float) -> QueueStats:
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


def view_of(task: MemoryTask, queue: str, shelf: TaskTable) -> MessageInfo:
    state = task.state
    return MessageInfo(
        id=task.id,
        key=task.key,
        state=task.task_state,
        attempts=task.attempts,
        fence=task.fence,
        where=f"memory:{queue}/{task.task_state.value}/{task.key}",
        due_at=shelf.wall(state.due_at) if isinstance(state, WaitingState) else None,
        holder=_holder(task, state, shelf) if isinstance(state, LeasedState) else None,
        reason=state.reason if isinstance(state, DeadState) else None,
        past=task.past,
        checkpoint=json.loads(task.checkpoint) if task.checkpoint else None,
        body=plain(task.body),
    )


def _holder(task: MemoryTask, held: LeasedState, shelf: TaskTable) -> Holder:
    return Holder(
        worker_id=held.worker_id,
        timestamp=shelf.wall(held.since),
        attempt=task.attempts,
        expires_at=shelf.wall(held.until),
        pid=os.getpid(),
    )
