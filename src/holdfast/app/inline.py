"""Pushed tasks in tests: run at once in the test's own thread, or only collected."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from holdfast.app.task import Task, TaskMessage, TaskRouter
from holdfast.testing.handlers import run_once
from holdfast.worker.outcome import Done, Outcome


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
        push = PushedTask(message.task, message.arguments, message.id, delay_seconds)
        self.pushed.append(push)
        if self._runs:
            push.outcome = outcome = self._run(message)
            if (error := getattr(outcome, "exception", None)) is not None:
                raise error
        return message.id

    def _run(self, message: TaskMessage) -> Outcome:
        def run() -> Outcome:
            return run_once(TaskRouter(self._tasks), message)

        is_async = inspect.iscoroutinefunction(self._tasks[message.task].__wrapped__)
        return _run_in_thread(run) if is_async and _has_running_loop() else run()

    def load_result(self, message_id: str) -> Any:
        """Return what the task with this id returned, or None."""
        outcomes = [push.outcome for push in self.pushed if push.id == message_id]
        results = [outcome.result for outcome in outcomes if isinstance(outcome, Done)]
        return results[-1] if results else None


def _has_running_loop() -> bool:
    """Return whether this thread runs an event loop, as an async test does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_in_thread(run: Callable[[], Outcome]) -> Outcome:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
