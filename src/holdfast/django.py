"""A backend for Django's tasks: `task.enqueue()` pushes, and a Holdfast worker runs the task.

    TASKS = {
        "default": {
            "BACKEND": "holdfast.django.HoldfastBackend",
            "OPTIONS": {"queue": "sqlite:work.db"},
        }
    }

    DJANGO_SETTINGS_MODULE=mysite.settings holdfast work sqlite:work.db holdfast.django:run_task

One backend is one queue of Holdfast, whatever the names in QUEUES. Without the option `queue`
it is that of HOLDFAST_QUEUE. The interface is that of `django.tasks` (Django 6.0), or of the
package `django-tasks` for older versions of Django.
"""

import logging
import os
import re
import socket
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import django
from django.apps import apps
from django.db import close_old_connections
from django.utils.module_loading import import_string
from pydantic import Field

from holdfast.errors import Unsupported
from holdfast.lease.clock import utc_now
from holdfast.queue.info import MessageInfo, MessageState
from holdfast.queue.manager import QueueManager
from holdfast.queue.message import QueueMessage
from holdfast.queues.opening import open_queue
from holdfast.worker.outcome import Done, Reject, done_with_result
from holdfast.worker.runner import Context

try:
    from django.tasks import base, exceptions, signals
    from django.tasks.backends.base import BaseTaskBackend
except ImportError:
    from django_tasks import base, exceptions, signals
    from django_tasks.backends.base import BaseTaskBackend

_log = logging.getLogger("holdfast")

Status = base.TaskResultStatus

_STATUS = {
    MessageState.PENDING: Status.READY,
    MessageState.LEASED: Status.RUNNING,
    MessageState.COMPLETED: Status.SUCCESSFUL,
    MessageState.FAILED: Status.FAILED,
}

_FAILURES = ("retried", "lost", "dead-lettered", "cancelled")
# The first line below the frames of a traceback, which are indented, begins with the name.
_RAISED = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)*([\w.]+)", re.M)


class DjangoTask(QueueMessage):
    """One call of a task's function."""

    path: str  # of the function, as in mysite.tasks.send
    args: list[Any] = Field(default_factory=list, repr=False)
    kwargs: dict[str, Any] = Field(default_factory=dict, repr=False)
    backend: str
    queue_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTaskContext(base.TaskContext):
    """The context of a task that has `takes_context=True`.

    `holdfast` is the context of its lease, so long work can call `context.holdfast.beat()`.
    """

    holdfast: Context


class StoredResult(base.TaskResult):
    """The state of a task's message, with what the function returned if the queue keeps it."""

    __slots__ = ()

    @property
    def return_value(self) -> Any:
        """What the function returned; None if it was too large or no JSON.

        Raises ValueError if the task has not succeeded, and Unsupported if the queue keeps no
        results.
        """
        value = super().return_value
        queue = self.task.get_backend().queue
        if value is None and "results" not in queue.capabilities:
            raise Unsupported(
                f"the queue {queue.name!r} does not keep what a task returns: use a sqlite: "
                "queue, or let the task write it to the database"
            )
        return value


class HoldfastBackend(BaseTaskBackend):
    """Pushes tasks to a queue of Holdfast.

    Results can be read if the queue can find a message by its id, which SQS cannot.
    """

    supports_defer = True
    supports_async_task = True

    @cached_property
    def queue(self) -> QueueManager[DjangoTask]:
        """The queue of this backend, which is opened at its first use."""
        options = dict(self.options)
        return open_queue(options.pop("queue", None), DjangoTask, **options)

    @property
    def supports_get_result(self) -> bool:
        """Return whether the queue can find a message by its id."""
        return "find" in self.queue.capabilities

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> StoredResult:
        """Push one call of the task. After the return it cannot be lost.

        Raises TypeError if an argument cannot be written as JSON, and QueueUnavailable.
        """
        self.validate_task(task)
        call = DjangoTask(
            path=task.module_path,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            queue_name=task.queue_name,
        )
        result = _make_result(task, call)  # raises TypeError if an argument is not JSON
        self.queue.push(call, delay_seconds=_compute_delay(task.run_after))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> StoredResult:
        """Return the state of a task. Raises TaskResultDoesNotExist for an unknown id."""
        for info in self.queue.find(result_id):
            if info.body is not None:
                call = DjangoTask.model_validate(info.body)
                result = _read_result(info, _load_task(call), call)
                if result.status == Status.SUCCESSFUL and "results" in self.queue.capabilities:
                    _set(result, _return_value=self.queue.load_result(result_id))
                return result
        raise exceptions.TaskResultDoesNotExist(result_id)


def run_task(message: DjangoTask, ctx: Context) -> Done | Reject:
    """Run a task's function. This is the handler of a worker.

    An exception is a failed attempt, which is repeated after the queue's backoff. What the
    function returns is kept if the queue can. A value that cannot be kept is only logged,
    because the work is done.
    """
    if not apps.ready:
        django.setup()
    task = _load_task(message)
    if not isinstance(task, base.Task):
        return Reject(f"{message.path} is not a Django task")
    started_at = utc_now()
    result = _make_result(
        task,
        message,
        status=Status.RUNNING,
        started_at=started_at,
        last_attempted_at=started_at,
        worker_ids=[f"{socket.gethostname()}-{os.getpid()}"] * ctx.attempt,
    )
    close_old_connections()  # before and after, as Django does for a request
    try:
        done = _run(task, result, ctx)
    finally:
        close_old_connections()
    if done.ignored:
        _log.warning("what %s returned is not kept: %s", message.path, done.ignored)
    return done


def _run(task: Any, result: StoredResult, ctx: Context) -> Done:
    """Call the function between the signals of its start and its end."""
    sender = type(task.get_backend())
    signals.task_started.send(sender, task_result=result)
    context = (
        [LeasedTaskContext(task_result=result, holdfast=ctx)] if task.takes_context else []
    )
    try:
        done = done_with_result(task.call(*context, *result.args, **result.kwargs))
    except Exception as error:
        result.errors.append(_to_task_error(error))
        _set(result, status=Status.FAILED, finished_at=utc_now())
        raise
    else:
        _set(
            result,
            status=Status.SUCCESSFUL,
            finished_at=utc_now(),
            _return_value=done.result,
        )
        return done
    finally:
        if result.is_finished:  # not if the worker cancelled it
            signals.task_finished.send(sender, task_result=result)


def _set(result: StoredResult, **fields: Any) -> None:
    # A result is frozen for its users; a backend sets its fields in this way.
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def _load_task(call: DjangoTask) -> Any:
    """Return the task by its path, with the backend and the queue that it was pushed with."""
    task = import_string(call.path)
    if isinstance(task, base.Task):
        task = task.using(queue_name=call.queue_name, backend=call.backend)
    return task


def _make_result(task: Any, call: DjangoTask, **fields: Any) -> StoredResult:
    values: dict[str, Any] = {
        "status": Status.READY,
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "errors": [],
        "worker_ids": [],
    }
    return StoredResult(
        task=task,
        id=call.id,
        args=call.args,
        kwargs=call.kwargs,
        backend=call.backend,
        enqueued_at=call.created_at,
        **values | fields,
    )


def _read_result(info: MessageInfo, task: Any, call: DjangoTask) -> StoredResult:
    claimed_at = info.holder.timestamp if info.holder else None
    ended_at = info.past[-1].at if info.past else None
    return _make_result(
        task,
        call,
        status=_STATUS[info.state],
        started_at=claimed_at,
        last_attempted_at=claimed_at or ended_at,
        finished_at=ended_at if info.state is MessageState.FAILED else None,
        errors=list(_read_errors(info)),
        worker_ids=_list_workers(info),
    )


def _list_workers(info: MessageInfo) -> list[str]:
    """Return one worker for each attempt, because Django counts the attempts by them."""
    workers = [past.worker_id for past in info.past]
    if info.holder:
        workers.append(info.holder.worker_id)
    workers += ["unknown"] * (info.attempts - len(workers))  # of an attempt that succeeded
    return workers[len(workers) - info.attempts :]  # without those before a redrive


def _read_errors(info: MessageInfo) -> Iterator[Any]:
    for past in info.past:
        if past.outcome in _FAILURES:
            names = _RAISED.findall(past.detail or "")
            # Without a traceback, Holdfast ended the attempt, or its process died.
            name = names[-1] if names else "holdfast.AttemptFailed"
            path = name if "." in name else f"builtins.{name}"
            traceback_or_reason = past.detail or past.reason
            yield base.TaskError(exception_class_path=path, traceback=traceback_or_reason)


def _to_task_error(error: Exception) -> Any:
    kind = type(error)
    return base.TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
        traceback="".join(traceback.format_exception(error)),
    )


def _compute_delay(run_after: datetime | None) -> float:
    if run_after is None:
        return 0.0
    moment = run_after if run_after.tzinfo else run_after.astimezone()
    return max(0.0, (moment - utc_now()).total_seconds())
