"""A task: a function that can be pushed to the app's queue, and how its messages are run."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import update_wrapper
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar

from pydantic import Field, ValidationError

from holdfast.app.arguments import TaskArguments
from holdfast.errors import ConfigError, MalformedMessage
from holdfast.lease.backoff import Backoff
from holdfast.process.liveness import LivenessLimits
from holdfast.queue.message import MAX_ID_LENGTH, QueueMessage, make_id
from holdfast.text import parse_duration
from holdfast.worker.outcome import (
    Done,
    GiveBack,
    Outcome,
    Reject,
    Retry,
    done_with_result,
)

P = ParamSpec("P")
R = TypeVar("R")

Duration = str | float | timedelta
"""A text such as "90s", "10m" or "1h30m", or seconds."""

TaskIsolation = Literal["thread", "process"]

# Long enough for a deployment to bring workers that know the task.
_UNKNOWN_SECONDS = 30.0
_MAX_NAME_SHOWN = 64  # characters of the name in a message, which may be hostile


class TaskMessage(QueueMessage):
    """One call of a task, with the arguments that were given, as plain JSON data."""

    task: str
    arguments: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How the messages of one task are run. None means the setting of the queue."""

    isolation: TaskIsolation
    limits: LivenessLimits
    max_attempts: int | None
    backoff: Backoff | None


def make_settings(
    *,
    isolation: TaskIsolation,
    stall: Duration | None,
    timeout: Duration | None,
    retries: int | None,
    backoff: Backoff | str | None,
) -> TaskSettings:
    """Check the settings of a task. Raises ConfigError with the setting and its value."""
    if isolation not in ("thread", "process"):
        raise ConfigError(
            f"isolation must be thread or process, not {isolation!r}; an async def runs in both"
        )
    if retries is not None and (type(retries) is not int or retries < 0):
        raise ConfigError(f"retries must be a whole number of 0 or more, not {retries!r}")
    if backoff is not None and not isinstance(backoff, Backoff):
        try:
            backoff = Backoff.parse(str(backoff))
        except ValueError as error:
            raise ConfigError(f"backoff: {error}; got {backoff!r}") from None
    limits = LivenessLimits(
        None if stall is None else parse_setting("stall", stall),
        None if timeout is None else parse_setting("timeout", timeout),
    )
    max_attempts = None if retries is None else retries + 1
    return TaskSettings(isolation, limits, max_attempts, backoff)


def parse_setting(name: str, duration: Duration, *, min_seconds: float = 0.001) -> float:
    """Return the seconds of a setting. Raises ConfigError with its name and its value."""
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    try:
        seconds = float(parse_duration(duration))
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    except TypeError:
        raise ConfigError(
            f"{name} must be a text such as '10m', or seconds, not {duration!r}"
        ) from None
    if not seconds >= min_seconds:
        bound = "above" if min_seconds else "at least"
        raise ConfigError(f"{name} must be {bound} 0, not {duration!r}")
    return seconds


class TaskQueue(Protocol):
    """The part of an app that a task uses."""

    def push_message(self, message: TaskMessage, delay_seconds: float) -> str:
        """Push a message and return its id."""

    def load_result(self, message_id: str) -> Any:
        """Return the result of a message, or None."""


class Task(Generic[P, R]):
    """A function that can be pushed. Calling it runs the function as it is."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[P, R]

    def __init__(
        self, queue: TaskQueue, function: Callable[P, R], name: str, settings: TaskSettings
    ) -> None:
        """Read the signature. Raises ConfigError if the function cannot be a task."""
        if inspect.isclass(function) or not inspect.isroutine(function):
            raise ConfigError(f"@app.task needs a function, not {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"task {name!r} yields, so calling it runs nothing: return instead"
            )
        if not isinstance(name, str) or not name or name == "<lambda>":
            raise ConfigError(
                f"a task needs a name, as in @app.task(name='enrich'); got {name!r}"
            )
        update_wrapper(self, function)
        self.name = name
        self.settings = settings
        self.arguments = TaskArguments(function, name)
        self._queue = queue

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> str:
        """Pickle the task by its name, as a function is, so that a child process imports it."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of {self.__module__}.{self.__qualname__}>"

    def check(self) -> None:
        """Raise ConfigError if the task could never run."""
        self.arguments.check()
        if self.settings.isolation == "process":
            from holdfast.worker.watchdog import pickle_handler  # producers need none

            pickle_handler(self)

    def push(
        self, *args: Any, delay: Duration = 0.0, id: str | None = None, **kwargs: Any
    ) -> str:
        """Push a call with these arguments, and return the id of its message.

        It runs no earlier than after `delay`. The `id` is that of the message. If it was
        pushed before, the queue runs both, unless it has `dedupe`: then a second push does
        nothing. Raises MalformedMessage, which names the parameter, if the arguments do not
        fit the signature, and what `QueueManager.push` raises.
        """
        arguments = self.arguments.pack(args, kwargs)
        delay_seconds = parse_setting("delay", delay, min_seconds=0.0)
        try:
            message = TaskMessage(
                id=make_id() if id is None else id, task=self.name, arguments=arguments
            )
        except ValidationError:  # only the id may be invalid
            raise MalformedMessage(
                f"id must be text of 1 to {MAX_ID_LENGTH} characters, not {id!r:.80}"
            ) from None
        return self._queue.push_message(message, delay_seconds)

    async def apush(
        self, *args: Any, delay: Duration = 0.0, id: str | None = None, **kwargs: Any
    ) -> str:
        """Push as `push` does, without blocking the event loop."""
        import asyncio  # here, because most producers need none

        return await asyncio.to_thread(self.push, *args, delay=delay, id=id, **kwargs)

    def result(self, id: str) -> Any:
        """Return what the call with this id returned, as plain JSON data.

        Returns None if it is not completed, returned None, is a dead letter, or was purged;
        `app.queue.find(id)` tells them apart. Raises Unsupported if the queue keeps no results.
        """
        return self._queue.load_result(id)


class TaskRouter:
    """The handler of the messages of all tasks. A child process unpickles it with its tasks."""

    def __init__(self, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._tasks = dict(tasks)

    def __call__(self, message: TaskMessage, ctx: Any) -> Any:
        """Run the task of a message, and return its outcome, or a coroutine that does."""
        if (task := self._tasks.get(message.task)) is None:
            return retry_unknown(message.task, self._tasks)
        try:
            values = task.arguments.unpack(message.arguments)
        except MalformedMessage as error:
            misfit = "its arguments do not fit the task"
            return Retry(_UNKNOWN_SECONDS, f"{misfit}: {error}", log_reason=misfit)
        result = task.arguments.call(values, ctx)
        return _await_outcome(result) if inspect.isawaitable(result) else _keep(result)


async def _await_outcome(work: Awaitable[Any]) -> Outcome | None:
    return _keep(await work)


def _keep(value: Any) -> Outcome | None:
    """Return the outcome of a task that returned this value."""
    if value is None or isinstance(value, Done | Retry | Reject | GiveBack):
        return value
    return done_with_result(value)


def retry_unknown(name: str, known: Mapping[str, Any]) -> Retry:
    """Return the outcome of a message whose task this app does not have.

    It waits for newer workers as long as it has attempts, and is a dead letter after that.
    """
    name = name[:_MAX_NAME_SHOWN]
    reason = (
        f"there is no task {name!r}, only {', '.join(sorted(known)) or 'none'}: run newer "
        f"workers, or keep the name of a renamed task with @app.task(name={name!r})"
    )
    return Retry(_UNKNOWN_SECONDS, reason, log_reason=reason)
