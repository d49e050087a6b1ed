"""The worker of an app: one set of slots for all tasks, each run as its own settings say.

    slot ─ fetch ─▶ TaskExecutor ─┬─ isolation="thread" ──▶ the thread of the slot
                                  └─ isolation="process" ─▶ the child process of the slot

A slot is a thread in both cases, so tasks of both kinds share the slots. A slot has a child
process only if the app has a task that needs one.
"""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from holdfast.app.task import Task, TaskMessage, TaskRouter, TaskSettings, retry_unknown
from holdfast.events import ResultNotKept
from holdfast.lease.lease import Lease
from holdfast.process.liveness import LivenessLimits
from holdfast.queue.manager import QueueManager
from holdfast.worker.fetcher import Fetcher
from holdfast.worker.outcome import Done, Outcome, Retry, reject_last
from holdfast.worker.runner import DirectExecutor, Executor, SlotRunner
from holdfast.worker.settle import InFlight
from holdfast.worker.watchdog import EXIT_TIMEOUT_SECONDS, Watchdog, pickle_handler
from holdfast.worker.worker import Worker

Tasks = Mapping[str, Task[..., Any]]


class TaskWorker(Worker[TaskMessage]):
    """Runs the messages of an app's tasks until stopped."""

    def __init__(
        self,
        queue: QueueManager[TaskMessage],
        tasks: Tasks,
        default_attempts: int,
        **options: Any,
    ) -> None:
        """Raise the queue's `max_attempts` to that of the task with the most retries.

        `default_attempts` are those of a task without a number of its own.
        """
        self._tasks = dict(tasks)
        self._default_attempts = default_attempts
        limits = [task.settings.max_attempts or 1 for task in tasks.values()]
        queue.max_attempts = max(queue.max_attempts, *limits)
        in_processes = {
            name: task for name, task in tasks.items() if task.settings.isolation == "process"
        }
        self._pickled_tasks = pickle_handler(TaskRouter(in_processes)) if in_processes else b""
        super().__init__(queue, TaskRouter(tasks), **options)
        if any(
            (task.settings.max_attempts or default_attempts) == 1 for task in tasks.values()
        ):
            # A crash would cost a message its only attempt although it was not started.
            self.prefetch = 0
        if len(in_processes) == len(tasks):
            self.isolation = "process"  # what logs and the command line say

    def _make_runner(
        self, fetcher: Fetcher[TaskMessage], in_flight: InFlight[TaskMessage]
    ) -> SlotRunner[TaskMessage]:
        reported: dict[str, object] = {}

        def make_executor() -> TaskExecutor:
            watchdog: Watchdog[TaskMessage] | None = None
            if self._pickled_tasks:
                limits = _find_strictest(self._tasks, "process")
                watchdog = Watchdog(self._pickled_tasks, limits, in_flight)
            return TaskExecutor(
                self._tasks, in_flight, watchdog, reported, self._default_attempts
            )

        return SlotRunner(
            self.concurrency,
            make_executor,
            fetcher,
            in_flight,
            find_limits=self._find_limits,
            strictest=_find_strictest(self._tasks, "thread"),
            exit_timeout_seconds=EXIT_TIMEOUT_SECONDS if self._pickled_tasks else 0.0,
        )

    def _find_limits(self, message: TaskMessage) -> LivenessLimits | None:
        task = self._tasks.get(message.task)
        if task is None or task.settings.isolation == "process":
            return None
        return task.settings.limits


def _find_strictest(tasks: Tasks, isolation: str) -> LivenessLimits:
    """Return the shortest limits of the tasks with this isolation."""
    limits = [
        task.settings.limits for task in tasks.values() if task.settings.isolation == isolation
    ]
    return LivenessLimits(
        min((limit.stall_seconds for limit in limits if limit.stall_seconds), default=None),
        min((limit.timeout_seconds for limit in limits if limit.timeout_seconds), default=None),
    )


class TaskExecutor(Executor[TaskMessage]):
    """Runs each message where its task asks, and applies the retries of the task.

    The executors of a run share `reported`, so that a task whose results are not kept is
    reported once.
    """

    def __init__(
        self,
        tasks: Tasks,
        in_flight: InFlight[TaskMessage],
        watchdog: Watchdog[TaskMessage] | None,
        reported: dict[str, object],
        default_attempts: int,
    ) -> None:
        self._tasks = tasks
        self._direct = DirectExecutor(TaskRouter(tasks), in_flight.make_context)
        self._watchdog = watchdog
        self.prepare = None if watchdog is None else watchdog.prepare
        self._in_flight = in_flight
        self._reported = reported
        self._default_attempts = default_attempts
        self._random = Random()

    def execute(self, message: TaskMessage, lease: Lease) -> Outcome:
        """Run the task and return its outcome, which is final after its last attempt."""
        if (task := self._tasks.get(message.task)) is None:
            return retry_unknown(message.task, self._tasks)
        settings = task.settings
        max_attempts = settings.max_attempts or self._default_attempts
        if lease.attempt > max_attempts:  # the last one was lost with its worker
            lost = "its worker died or froze"
            return reject_last(Retry(reason=lost, log_reason=lost), max_attempts)
        outcome = self._run(settings, message, lease)
        if isinstance(outcome, Done):
            self._report_lost_result(message, lease, outcome)
        if isinstance(outcome, Retry):
            return self._limit_retries(outcome, settings, lease.attempt, max_attempts)
        return outcome

    def _run(self, settings: TaskSettings, message: TaskMessage, lease: Lease) -> Outcome:
        if settings.isolation == "process":
            assert self._watchdog is not None
            self._watchdog.limits = settings.limits
            return self._watchdog.execute(message, lease)
        return self._direct.execute(message, lease)

    def _limit_retries(
        self, outcome: Retry, settings: TaskSettings, attempt: int, max_attempts: int
    ) -> Outcome:
        if attempt >= max_attempts:
            return reject_last(outcome, attempt)
        if outcome.after_seconds is None and settings.backoff is not None:
            return replace(outcome, after_seconds=settings.backoff.delay(attempt, self._random))
        return outcome

    def _report_lost_result(self, message: TaskMessage, lease: Lease, outcome: Done) -> None:
        queue = self._in_flight.queue
        reason = outcome.ignored
        if outcome.result is not None and "results" not in queue.capabilities:
            reason = "this kind of queue keeps no results"
        token = object()  # setdefault decides between slots that report at the same time
        if reason and self._reported.setdefault(message.task, token) is token:
            self._in_flight.events.emit(
                ResultNotKept(queue.name, message.id, lease.attempt, message.task, reason)
            )

    def close(self) -> None:
        """Close the event loop and end the child process."""
        self._direct.close()
        if self._watchdog is not None:
            self._watchdog.close()
