"""The statistics and message details of a memory queue, as pure functions of its tasks."""

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
    parse_body,
)


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
    )
