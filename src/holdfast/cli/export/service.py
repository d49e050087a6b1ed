"""The parts of `holdfast export serve`: queue, job store, engine and worker, put together.

stop   jobs drain, or are given back ─▶ pool ─▶ reconciler ─▶ heartbeats, last of all
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap import open_queue
from holdfast.bootstrap.exports import export_engine, open_jobs, step_functions
from holdfast.cli.export.live_view import LiveView
from holdfast.cli.export.options import file_of
from holdfast.cli.export.watch import Watch
from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.status_line import EventCounts, LiveStatus, NoStatus
from holdfast.cli.watching import log_lines
from holdfast.cli.work import RunnableWorker
from holdfast.config.settings import ExportSettings, heartbeat_settings
from holdfast.core.events import Events
from holdfast.core.queue.message import AnyMessage
from holdfast.core.worker.worker import Worker, WorkerReport
from holdfast.jobs.consumer import ExportJobConsumer

if TYPE_CHECKING:
    from holdfast.core.queue.manager import QueueManager
    from holdfast.jobs.engine import JobEngine
    from holdfast.jobs.ports import JobStateRepository, StepFunctions

# What a job needs, once its downloads have drained, to count them and be given back.
_GIVE_BACK_SECONDS = 10.0


@dataclass(slots=True)
class ExportService:
    """Takes jobs from a queue until it is stopped."""

    queue: str
    to: str
    store: str
    manifests: str | None
    concurrency: int
    settings: ExportSettings
    stopped_now_by: int = 0

    def run(self, events: Events, log_format: str | None, *, until_empty: bool) -> WorkerReport:
        """Raises ConfigError when something is missing that jobs will need."""
        tally = EventCounts()
        events.subscribe(tally)
        callbacks = step_functions(needed=self._in_cloud)
        with (
            open_queue(self.queue, AnyMessage, events=events) as queue,
            open_jobs(self.store) as jobs,
        ):
            jobs.find_by_id("holdfast")  # a store that cannot be used is told of now
            engine = self._engine(jobs, callbacks, events)
            worker = self._worker(queue, engine, callbacks)
            screen = self._screen(jobs, engine, events, queue.name, log_format)
            stint = RunnableEngine(engine, worker, tally, until_empty)
            shift = ForegroundRunner(stint, screen, self.settings.drain_seconds)
            report = shift.run()
        self.stopped_now_by = shift.stopped_now_by
        return report

    @property
    def _in_cloud(self) -> bool:
        """Where jobs have tokens; there they must be answered."""
        scheme, colon, _ = self.queue.partition(":")
        sqs = bool(colon) and scheme.lower() in ("sqs", "http", "https")
        return sqs or file_of(self.store) is None

    def _engine(
        self, jobs: "JobStateRepository", callbacks: "StepFunctions | None", events: Events
    ) -> "JobEngine":
        return export_engine(
            jobs,
            self.to,
            settings=self.settings,
            heartbeats=heartbeat_settings(os.environ),
            manifests=self.manifests,
            callbacks=callbacks,
            events=events,
        )

    def _worker(
        self,
        queue: "QueueManager[AnyMessage]",
        engine: "JobEngine",
        callbacks: "StepFunctions | None",
    ) -> Worker[AnyMessage]:
        consumer = ExportJobConsumer(
            engine.runner, engine.tracker, callbacks, max_attempts=queue.max_attempts
        )
        return Worker(
            queue,
            consumer,
            concurrency=self.concurrency,
            isolation="thread",
            # Longer than jobs drain, or the worker would cut them off while they do.
            drain_seconds=self.settings.drain_seconds + _GIVE_BACK_SECONDS,
            events=queue.events,
        )

    def _screen(
        self,
        jobs: "JobStateRepository",
        engine: "JobEngine",
        events: Events,
        name: str,
        log_format: str | None,
    ) -> LiveStatus:
        if not log_lines(events, log_format):
            return NoStatus()
        watch = Watch(jobs, engine, lambda: engine.dispatcher.running)
        events.subscribe(watch)
        return LiveView(watch, f"{name} to {self.to}", many=True)


class RunnableEngine(RunnableWorker):
    """A worker whose engine runs as long as it does, and a moment longer."""

    def __init__(
        self, engine: "JobEngine", worker: "Worker[Any]", tally: EventCounts, until_empty: bool
    ) -> None:
        super().__init__(worker, tally, until_empty)
        self._engine = engine

    def run(self) -> WorkerReport:
        with self._engine:
            return super().run()
