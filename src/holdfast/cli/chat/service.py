"""The parts of `holdfast chat work`: a worker for each queue, one keeper, a sweeper.

stop   workers drain ─▶ the sweeper ends ─▶ the keeper, last of all: locks outlive the work
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.status_line import EventCounts, NoStatus, StatusLine
from holdfast.cli.watching import log_lines
from holdfast.conversations.model import Channel
from holdfast.core.clock import SYSTEM_CLOCK
from holdfast.core.errors import QueueUnavailable, StoreUnavailable
from holdfast.core.events import Events, PollFailed
from holdfast.core.worker.worker import Worker, WorkerReport

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.core.queue.manager import QueueManager
    from holdfast.core.worker.handler import Handler

_LOOK_SECONDS = 0.5
_LOOKS_UNTIL_IDLE = 2  # a batch under way is in no queue's books for a moment


@dataclass(slots=True)
class ChatService:
    """Answers until it is stopped."""

    app: "ChatApp"
    channels: list[Channel]
    inbound: bool
    concurrency: int
    drain_seconds: float
    stopped_now_by: int = 0

    def run(self, events: Events, log_format: str | None, *, until_idle: bool) -> WorkerReport:
        """Raises ConfigError when a queue cannot be used."""
        tally = EventCounts()
        events.subscribe(tally)
        queues = self._queues()
        workers = [self._worker(queue, handler) for queue, handler in queues.items()]
        live = log_lines(events, log_format)
        screen = StatusLine(f"chat {' '.join(self.channels)}", tally) if live else NoStatus()
        watched = list(queues) if until_idle else []
        stint = RunnableChat(self.app, workers, watched, tally, events)
        shift = ForegroundRunner(stint, screen, self.drain_seconds)
        report = shift.run()
        self.stopped_now_by = shift.stopped_now_by
        return report

    def _queues(self) -> "dict[QueueManager[Any], Handler]":
        """Each queue once, also where channels share one; and who handles its messages."""
        app = self.app
        found: dict[QueueManager[Any], Handler] = {}
        for channel in self.channels:
            found[app.queues[channel]] = app.processor
        if self.inbound:
            found[app.queues.inbound()] = app.stager
        return found

    def _worker(self, queue: "QueueManager[Any]", handler: "Handler") -> Worker[Any]:
        return Worker(
            queue,
            handler,
            concurrency=self.concurrency,
            isolation="thread",
            drain_seconds=self.drain_seconds,
            keeper=self.app.keeper,
            events=queue.events,
        )


class RunnableChat:
    """Several workers and a sweeper, as a shift sees them. With queues to be `watched` they
    end when these are empty and nothing is staged."""

    def __init__(
        self,
        app: "ChatApp",
        workers: "list[Worker[Any]]",
        watched: "list[QueueManager[Any]]",
        tally: EventCounts,
        events: Events,
    ) -> None:
        self._app, self._workers, self._watched = app, workers, watched
        self._tally, self._events = tally, events
        self._stopped = Event()
        self._reports: list[WorkerReport] = []
        self._errors: list[BaseException] = []

    @property
    def running(self) -> int:
        return self._tally.running

    def stop(self) -> None:
        self._stopped.set()
        for worker in self._workers:
            worker.stop()

    def stop_now(self) -> None:
        self._stopped.set()
        for worker in self._workers:
            worker.stop_now()

    def run(self) -> WorkerReport:
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
            self._tend()
        finally:  # also if one cannot start: the others would work on a closed store
            self.stop()
            for thread in started:
                thread.join()
        if self._errors:
            raise self._errors[0]
        return WorkerReport(*map(sum, zip(*map(astuple, self._reports), strict=True)))

    def _work(self, worker: "Worker[Any]") -> None:
        try:
            self._reports.append(worker.run())
        except BaseException as error:  # it is raised again where it can be told
            self._errors.append(error)
            self._stopped.set()

    # -- beside the workers

    def _tend(self) -> None:
        """Sweep now and then, and see whether nothing waits, until stopped."""
        sweep_at, idle_looks = SYSTEM_CLOCK.monotonic(), 0
        while not SYSTEM_CLOCK.wait(self._stopped, _LOOK_SECONDS):
            if SYSTEM_CLOCK.monotonic() >= sweep_at:
                self._safely(self._app.sweeper.sweep)
                sweep_at = SYSTEM_CLOCK.monotonic() + self._app.settings.grace_seconds
            idle_looks = idle_looks + 1 if self._watched and self._safely(self._idle) else 0
            if idle_looks >= _LOOKS_UNTIL_IDLE:
                return

    def _safely(self, act: Callable[[], Any]) -> Any:
        """What does not answer now does later."""
        try:
            return act()
        except (StoreUnavailable, QueueUnavailable) as error:
            self._events.emit(PollFailed("chat", f"{type(error).__name__}: {error}"))
            return None

    def _idle(self) -> bool:
        if self._tally.running or next(self._app.store.waiting(), None) is not None:
            return False
        return all(map(_empty, self._watched))


def _empty(queue: "QueueManager[Any]") -> bool:
    stats = queue.stats()
    return stats.ready == stats.delayed == stats.expired == 0
