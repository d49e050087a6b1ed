"""Holdfast: an app with its queue and its tasks."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from holdfast.app.task import (
    Duration,
    Task,
    TaskIsolation,
    TaskMessage,
    TaskQueue,
    make_settings,
)
from holdfast.errors import ConfigError
from holdfast.events import Events, OnError
from holdfast.lease.backoff import Backoff
from holdfast.queue.manager import QueueManager
from holdfast.queues.opening import (
    OpenOptions,
    QueueUrl,
    open_queue,
    resolve_queue_url,
)

if TYPE_CHECKING:
    from holdfast.app.inline import PushedTask
    from holdfast.app.worker import TaskWorker
    from holdfast.worker.worker import Prefetch

P = ParamSpec("P")
R = TypeVar("R")


class Holdfast:
    """An app: the tasks that share one queue.

    `url` and the options are those of `open_queue`. Without a URL, HOLDFAST_QUEUE names the
    queue. It is opened at the first push, so importing a module of tasks touches no queue.
    `on_error` is that of Worker: it is called after each attempt that failed with an
    exception. Threads may share an app.
    """

    def __init__(
        self,
        url: QueueUrl | None = None,
        *,
        on_error: OnError | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        self.tasks: dict[str, Task[..., Any]] = {}
        self._url = url
        self._on_error = on_error
        self._options = options
        self._default_attempts: WeakKeyDictionary[QueueManager[Any], int] = WeakKeyDictionary()
        self._queue: QueueManager[TaskMessage] | None = None
        self._opening = Lock()
        self._inline: TaskQueue | None = None

    # -- tasks

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        isolation: TaskIsolation = "thread",
        stall: Duration | None = None,
        timeout: Duration | None = None,
        retries: int | None = None,
        backoff: Backoff | str | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        isolation: TaskIsolation = "thread",
        stall: Duration | None = None,
        timeout: Duration | None = None,
        retries: int | None = None,
        backoff: Backoff | str | None = None,
    ) -> Any:
        """Make a function a task: `@app.task` or `@app.task(retries=5)`.

            name       the name in messages; by default that of the function
            isolation  "thread", or "process" for a child process that can be killed
            stall      the maximum time between two calls of ctx.beat()
            timeout    the maximum time of one attempt
            retries    the repetitions of a failed attempt; by default those of the queue
            backoff    the delay before them, such as "5s,x2,max 10m", or a Backoff

        Each message carries the name, so keep it with `name=` when you rename the function.
        Raises ConfigError if the function or a setting cannot be used.
        """
        settings = make_settings(
            isolation=isolation, stall=stall, timeout=timeout, retries=retries, backoff=backoff
        )

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            default_name = getattr(function, "__name__", repr(function))
            task = Task(self, function, default_name if name is None else name, settings)
            self._add_task(task)
            return task

        return decorate if function is None else decorate(function)

    def _add_task(self, task: Task[..., Any]) -> None:
        known = self.tasks.get(task.name)
        # The same function again is a cell of a notebook that was run again.
        if known is not None and _get_place(known) != _get_place(task):
            raise ConfigError(
                f"two functions are called {task.name!r}, {_get_place(known)} and "
                f"{_get_place(task)}: give one of them another name, @app.task(name=…)"
            )
        self.tasks[task.name] = task

    # -- the queue

    @property
    def url(self) -> str:
        """The URL of the queue, or that of HOLDFAST_QUEUE. Raises ConfigError for neither."""
        return resolve_queue_url(self._url, self._options.get("env") or os.environ)

    @property
    def queue(self) -> QueueManager[TaskMessage]:
        """The queue of the app, which is opened on first use."""
        with self._opening:
            if self._queue is None:
                self._queue = self.open_queue()
            return self._queue

    def open_queue(
        self, url: str | None = None, **options: Unpack[OpenOptions]
    ) -> QueueManager[TaskMessage]:
        """Open the app's queue, or that of another URL, once more. The caller closes it."""
        merged: OpenOptions = {**self._options, **options}
        return open_queue(url or self.url, TaskMessage, **merged)

    def push_message(self, message: TaskMessage, delay_seconds: float) -> str:
        """Push a message of a task and return its id."""
        if self._inline is not None:
            return self._inline.push_message(message, delay_seconds)
        return self.queue.push(message, delay_seconds=delay_seconds)

    def load_result(self, message_id: str) -> Any:
        """Return the result of a message, or None."""
        if self._inline is not None:
            return self._inline.load_result(message_id)
        return self.queue.load_result(message_id)

    def close(self) -> None:
        """Close the queue. The next push opens it again."""
        with self._opening:
            if self._queue is not None:
                self._queue.close()
                self._queue = None

    # -- running

    def check_tasks(self) -> None:
        """Raise ConfigError if the app has no tasks, or one of them could never run."""
        if not self.tasks:
            raise ConfigError(
                "the app has no tasks: decorate a function with @app.task, and import its "
                "module where the app is made"
            )
        for task in self.tasks.values():
            task.check()

    def make_worker(
        self,
        queue: QueueManager[TaskMessage] | None = None,
        *,
        concurrency: int = 1,
        prefetch: "Prefetch" = "auto",
        drain_seconds: float = 30.0,
        events: Events | None = None,
    ) -> "TaskWorker":
        """Return a worker for all tasks, with `run`, `stop` and `stop_now`.

        The queue then delivers a message as often as the task with the most retries allows;
        the other tasks give up earlier by themselves. `prefetch` is as described at Worker;
        an app with a task of one attempt claims nothing ahead. Raises the errors of
        `check_tasks`.
        """
        from holdfast.app.worker import TaskWorker

        self.check_tasks()
        queue = self.queue if queue is None else queue
        with self._opening:
            # What the queue had before the first worker raised it.
            default = self._default_attempts.setdefault(queue, queue.max_attempts)
        return TaskWorker(
            queue,
            self.tasks,
            default,
            concurrency=concurrency,
            prefetch=prefetch,
            drain_seconds=drain_seconds,
            events=events,
            on_error=self._on_error,
        )

    @contextmanager
    def testing(self, *, run: bool = True) -> "Iterator[list[PushedTask]]":
        """Run pushed tasks at once in the pushing thread, or with `run=False` collect them.

        Yields the list of pushes. No queue is opened, a delay does not delay, and an exception
        of a task is raised by its push.
        """
        from holdfast.app.inline import InlineQueue

        before, self._inline = self._inline, (inline := InlineQueue(self.tasks, runs=run))
        try:
            yield inline.pushed
        finally:
            self._inline = before


def _get_place(task: Task[..., Any]) -> str:
    return f"{task.__module__}.{task.__qualname__}"
