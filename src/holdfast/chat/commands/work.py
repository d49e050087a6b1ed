"""`holdfast chat work`: answer messages until it is stopped or nothing waits.

It runs a worker for each queue, with one keeper, and a sweeper.

stop   workers drain ─▶ the sweeper ends ─▶ the keeper, last, because locks outlive the work
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass
from threading import Event
from typing import Annotated, Any

import typer

from holdfast.chat.building import ChatApp, build_chat
from holdfast.chat.model import Channel
from holdfast.cli.arguments import CONCURRENCY, parse_choice
from holdfast.cli.foreground import LEFT_TO_EXPIRE, ForegroundRunner, ServiceOptions
from holdfast.cli.live_view import EventCounts
from holdfast.errors import QueueUnavailable, StoreUnavailable
from holdfast.events import Events, PollFailed
from holdfast.lease.clock import SYSTEM_CLOCK
from holdfast.queue.manager import QueueManager
from holdfast.worker.handler import Handler
from holdfast.worker.settle import WorkerReport
from holdfast.worker.worker import Worker

_MARGIN_SECONDS = 5.0
_POLL_SECONDS = 0.5
_IDLE_POLLS = 2  # for a moment, no queue counts a batch that is being processed


def work(
    channel: Annotated[
        list[str] | None, "whatsapp|sms|email", "Handle only this channel; may be repeated."
    ] = None,
    inbound: Annotated[
        bool | None,
        typer.Option(
            "--inbound/--no-inbound",
            help="Also stage the messages of HOLDFAST_CHAT_INBOUND_QUEUE.",
            show_default="if it is set",
        ),
    ] = None,
    concurrency: Annotated[
        int, *CONCURRENCY, "Batches handled at the same time, per channel."
    ] = 4,
    drain: Annotated[
        float | None,
        "Time for running batches to finish after Ctrl-C; by default the timeouts of writer "
        "and sender.",
    ] = None,
    until_idle: Annotated[bool, "Exit when no message waits for a reply."] = False,
    *,
    service: ServiceOptions,
) -> None:
    """Answer customers' messages. Ctrl-C lets batches finish; Ctrl-C again stops now."""
    given = [parse_choice("--channel", name, Channel, str.lower) for name in channel or ()]
    channels = list(dict.fromkeys(given or Channel))
    events = Events(counts := EventCounts())
    with service.attach_subscribers(events), build_chat(os.environ, events=events) as app:
        if inbound is None:
            inbound = app.settings.inbound_queue is not None
        if drain is None:
            # If a reply is cut off, it is unknown whether it was sent, and its batch is parked.
            policy = app.settings.policy
            drain = policy.writer_seconds + policy.sender_seconds + _MARGIN_SECONDS
        queues = _collect_queues(app, channels, inbound)
        workers = [
            Worker(
                queue,
                handler,
                concurrency=concurrency,
                isolation="thread",
                prefetch=0,  # a trigger with nothing to do says nothing about the next reply
                drain_seconds=drain,
                keeper=app.keeper,
                events=queue.events,
            )
            for queue, handler in queues.items()
        ]
        chat = ChatWorkers(app, workers, list(queues) if until_idle else [], counts, events)
        runner = ForegroundRunner(
            chat.run, chat.stop, chat.stop_now, lambda: counts.running, drain, LEFT_TO_EXPIRE
        )
        name = f"chat {' '.join(channels)}"
        service.run(runner, list(queues), events, lambda: counts.show(name))


def _collect_queues(
    app: ChatApp, channels: list[Channel], inbound: bool
) -> dict[QueueManager[Any], Handler]:
    """Return each queue once, even if channels share it, with its handler."""
    handlers: dict[QueueManager[Any], Handler] = {}
    for channel in channels:
        handlers[app.queues[channel]] = app.processor
    if inbound:
        handlers[app.queues.inbound()] = app.stager
    return handlers


@dataclass
class ChatWorkers:
    """Several workers and a sweeper that run in the foreground.

    With `watched` queues they end when these are empty and nothing is staged.
    """

    app: ChatApp
    workers: list[Worker[Any]]
    watched: list[QueueManager[Any]]
    counts: EventCounts
    events: Events

    def __post_init__(self) -> None:
        self._stopped = Event()

    def stop(self) -> None:
        """Let every worker drain."""
        self._stopped.set()
        for worker in self.workers:
            worker.stop()

    def stop_now(self) -> None:
        """Stop every worker without draining."""
        self._stopped.set()
        for worker in self.workers:
            worker.stop_now()

    def run(self) -> WorkerReport:
        """Run the workers to their end and return their summed report."""
        self.app.keeper.start()
        with ThreadPoolExecutor(len(self.workers), "holdfast-chat") as threads:
            try:
                runs = [threads.submit(worker.run) for worker in self.workers]
                for run in runs:
                    run.add_done_callback(self._stop_if_failed)
                self._sweep_until_stopped()
            finally:  # also if a thread cannot start, or the others would use a closed store
                self.stop()
        reports = [astuple(run.result()) for run in runs]
        return WorkerReport(*map(sum, zip(*reports, strict=True)))

    def _stop_if_failed(self, run: Future[WorkerReport]) -> None:
        if run.exception() is not None:  # run() raises it in the main thread
            self._stopped.set()

    # -- beside the workers

    def _sweep_until_stopped(self) -> None:
        """Sweep from time to time, until stopped or until nothing waits."""
        sweep_at, idle_polls = SYSTEM_CLOCK.monotonic(), 0
        while not SYSTEM_CLOCK.wait(self._stopped, _POLL_SECONDS):
            if SYSTEM_CLOCK.monotonic() >= sweep_at:
                self._try_call(self.app.sweeper.sweep)
                sweep_at = SYSTEM_CLOCK.monotonic() + self.app.settings.grace_seconds
            idle_polls = idle_polls + 1 if self.watched and self._try_call(self._is_idle) else 0
            if idle_polls >= _IDLE_POLLS:
                return

    def _try_call(self, function: Callable[[], Any]) -> Any:
        """Call the function; None if a store or queue is unavailable for now."""
        try:
            return function()
        except (StoreUnavailable, QueueUnavailable) as error:
            self.events.emit(PollFailed("chat", f"{type(error).__name__}: {error}"))
            return None

    def _is_idle(self) -> bool:
        if self.counts.running or next(self.app.store.waiting(), None) is not None:
            return False
        stats = (queue.stats() for queue in self.watched)
        return all(each.ready == each.delayed == each.expired == 0 for each in stats)
