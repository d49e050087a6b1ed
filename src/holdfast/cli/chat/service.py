"""The workers of `holdfast chat work`, one for each queue, with one keeper and a sweeper.

stop   workers drain ─▶ the sweeper ends ─▶ the keeper, last, because locks outlive the work
"""

from collections.abc import Callable
from dataclasses import astuple
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from holdfast.cli.live_view import EventCounts
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.errors import QueueUnavailable, StoreUnavailable
from holdfast.core.events import Events, PollFailed
from holdfast.core.worker.worker import Worker, WorkerReport

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.core.queue.manager import QueueManager

_POLL_SECONDS = 0.5
_IDLE_POLLS = 2  # for a moment, no queue counts a batch that is being processed


class ChatWorkers:
    """Several workers and a sweeper that run in the foreground.

    With `watched` queues they end when these are empty and nothing is staged.
    """

    def __init__(
        self,
        app: "ChatApp",
        workers: "list[Worker[Any]]",
        watched: "list[QueueManager[Any]]",
        counts: EventCounts,
        events: Events,
    ) -> None:
        self._app, self._workers, self._watched = app, workers, watched
        self._counts, self._events = counts, events
        self._stopped = Event()
        self._reports: list[WorkerReport] = []
        self._errors: list[BaseException] = []

    def stop(self) -> None:
        """Let every worker drain."""
        self._stopped.set()
        for worker in self._workers:
            worker.stop()

    def stop_now(self) -> None:
        """Stop every worker without draining."""
        self._stopped.set()
        for worker in self._workers:
            worker.stop_now()

    def run(self) -> WorkerReport:
        """Run the workers to their end and return their summed report."""
        self._app.keeper.start()
        threads = [
            Thread(target=self._work, args=(worker,), name=f"holdfast-chat-{number}")
            for number, worker in enumerate(self._workers, 1)
        ]
        started: list[Thread] = []
        try:
            for thread in threads:
                thread.start()
                started.append(thread)
            self._sweep_until_stopped()
        finally:  # also if a thread cannot start, or the others would use a closed store
            self.stop()
            for thread in started:
                thread.join()
        if self._errors:
            raise self._errors[0]
        return WorkerReport(*map(sum, zip(*map(astuple, self._reports), strict=True)))

    def _work(self, worker: "Worker[Any]") -> None:
        try:
            self._reports.append(worker.run())
        except BaseException as error:  # run() raises it again in the main thread
            self._errors.append(error)
            self._stopped.set()

    # -- beside the workers

    def _sweep_until_stopped(self) -> None:
        """Sweep from time to time, until stopped or until nothing waits."""
        sweep_at, idle_polls = SYSTEM_CLOCK.monotonic(), 0
        while not SYSTEM_CLOCK.wait(self._stopped, _POLL_SECONDS):
            if SYSTEM_CLOCK.monotonic() >= sweep_at:
                self._try_call(self._app.sweeper.sweep)
                sweep_at = SYSTEM_CLOCK.monotonic() + self._app.settings.grace_seconds
            idle_polls = (
                idle_polls + 1 if self._watched and self._try_call(self._is_idle) else 0
            )
            if idle_polls >= _IDLE_POLLS:
                return

    def _try_call(self, function: Callable[[], Any]) -> Any:
        """Call the function; None if a store or queue is unavailable for now."""
        try:
            return function()
        except (StoreUnavailable, QueueUnavailable) as error:
            self._events.emit(PollFailed("chat", f"{type(error).__name__}: {error}"))
            return None

    def _is_idle(self) -> bool:
        if self._counts.running or next(self._app.store.waiting(), None) is not None:
            return False
        return all(map(_is_empty, self._watched))


def _is_empty(queue: "QueueManager[Any]") -> bool:
    stats = queue.stats()
    return stats.ready == stats.delayed == stats.expired == 0
