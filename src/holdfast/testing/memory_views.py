"""What people see of a memory queue: pure functions of its tasks."""

import json
import os
from collections.abc import Iterable

from holdfast.core.queue import Holder, QueueStats, TaskState, TaskView
from holdfast.testing.memory_tasks import Dead, Held, Shelf, Task, Waiting, plain


def stats_of(tasks: Iterable[Task], now: float) -> QueueStats:
    count = dict.fromkeys(TaskState, 0)
    ready_since = []
    expired = 0
    for task in tasks:
        count[task.task_state] += 1
        match task.state:
            case Waiting(due_at=due_at) if due_at <= now:
                ready_since.append(due_at)
            case Held(until=until) if until <= now:
                expired += 1
    return QueueStats(
        ready=len(ready_since),
        delayed=count[TaskState.PENDING] - len(ready_since),
        leased=count[TaskState.LEASED],
        expired=expired,
        completed=count[TaskState.COMPLETED],
        failed=count[TaskState.FAILED],
        oldest_ready_seconds=now - min(ready_since) if ready_since else None,
    )


def view_of(task: Task, queue: str, shelf: Shelf) -> TaskView:
    state = task.state
    return TaskView(
        id=task.id,
        key=task.key,
        state=task.task_state,
        attempts=task.attempts,
        fence=task.fence,
        where=f"memory:{queue}/{task.task_state.value}/{task.key}",
        due_at=shelf.wall(state.due_at) if isinstance(state, Waiting) else None,
        holder=_holder(task, state, shelf) if isinstance(state, Held) else None,
        reason=state.reason if isinstance(state, Dead) else None,
        past=task.past,
        checkpoint=json.loads(task.checkpoint) if task.checkpoint else None,
        body=plain(task.body),
    )


def _holder(task: Task, held: Held, shelf: Shelf) -> Holder:
    return Holder(
        worker_id=held.worker_id,
        timestamp=shelf.wall(held.since),
        attempt=task.attempts,
        expires_at=shelf.wall(held.until),
        pid=os.getpid(),
    )
