"""Pushed tasks in tests: run at once in the test's own thread, or only collected."""

import asyncio
import inspect
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any

from holdfast.app.task import Task, TaskMessage, TaskRouter
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.queue.message import get_lease
from holdfast.core.worker.context import Context
from holdfast.core.worker.outcome import Done, Outcome, to_outcome
from holdfast.testing.memory_queue import MemoryQueue


@dataclass(slots=True)
class PushedTask:
    """One push in a test. `outcome` is None if the task was not run."""

    task: str
    arguments: dict[str, Any]
    id: str
    delay_seconds: float
    outcome: Outcome | None = None


class InlineQueue:
    """Takes the pushes of an app in a test. No push reaches the app's queue."""

    def __init__(self, tasks: Mapping[str, Task[..., Any]], *, runs: bool) -> None:
        self.pushed: list[PushedTask] = []
        self._tasks = tasks
        self._runs = runs

    def push_message(self, message: TaskMessage, delay_seconds: float) -> str:
        """Run the message now, whatever its delay. An exception reaches the pushing code."""
        # A queue of its own, so that the arguments go through JSON and the task gets a
        # context, and so that a task may push others.
        queue = MemoryQueue(TaskMessage)
        queue.push(message)
        push = PushedTask(message.task, message.arguments, message.id, delay_seconds)
        self.pushed.append(push)
        if self._runs:
            [polled] = queue.poll()
            ctx = Context(queue, polled, get_lease(polled), Event(), SYSTEM_CLOCK)
            push.outcome = to_outcome(_finish(TaskRouter(self._tasks)(polled, ctx)))
        return message.id

    def load_result(self, message_id: str) -> Any:
        """Return what the task with this id returned, or None."""
        outcomes = [push.outcome for push in self.pushed if push.id == message_id]
        results = [outcome.result for outcome in outcomes if isinstance(outcome, Done)]
        return results[-1] if results else None


def _finish(result: Any) -> Any:
    """Await what an async task returned, in a thread because the test may have a loop."""
    if not inspect.isawaitable(result):
        return result
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _await(result)).result()


async def _await(work: Any) -> Any:
    return await work
