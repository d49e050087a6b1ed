"""The service of `holdfast export serve`: queue, job store, engine and worker.

stop   jobs drain, or are given back ─▶ pool ─▶ reconciler ─▶ heartbeats, last
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap import open_queue
from holdfast.bootstrap.exports import build_export_engine, open_jobs, open_step_functions
from holdfast.cli.export.live_view import LiveView
from holdfast.cli.export.monitor import ExportMonitor
from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.observability import subscribe_log
from holdfast.cli.status_line import EventCounts, LiveStatus, NoStatus
from holdfast.cli.work import RunnableWorker
from holdfast.config.export import ExportSettings
from holdfast.config.heartbeat import read_heartbeat_settings
from holdfast.core.events import Events
from holdfast.core.queue.message import AnyMessage
from holdfast.core.urls import QUEUES, find_store_file, parse_url
from holdfast.core.worker.worker import Worker, WorkerReport
from holdfast.jobs.consumer import ExportJobConsumer

if TYPE_CHECKING:
    from holdfast.core.queue.manager import QueueManager
    from holdfast.jobs.engine import JobEngine
    from holdfast.jobs.ports import JobStateRepository, StepFunctions

# The time that a job needs after its downloads have drained, to count them and be given back.
_GIVE_BACK_SECONDS = 10.0


@dataclass(slots=True)
class ExportService:
    """A service that takes jobs from a queue until it is stopped."""

    queue: str
    to: str
    store: str
    manifests: str | None
    concurrency: int
    settings: ExportSettings
    stopped_now_by: int = 0

    def run(self, events: Events, log_format: str | None, *, until_empty: bool) -> WorkerReport:
        """Run until stopped, or until the queue is empty.

        Raises ConfigError if something is missing that jobs will need.
        """
        counts = EventCounts()
        events.subscribe(counts)
        callbacks = open_step_functions(needed=self._is_in_cloud)
        with (
            open_queue(self.queue, AnyMessage, events=events) as queue,
            open_jobs(self.store) as jobs,
        ):
            jobs.find_by_id("holdfast")  # fail now if the store cannot be used
            engine = self._build_engine(jobs, callbacks, events)
            worker = self._build_worker(queue, engine, callbacks)
            status = self._choose_status(jobs, engine, events, queue.name, log_format)
            runnable = RunnableEngine(engine, worker, counts, until_empty)
            runner = ForegroundRunner(runnable, status, self.settings.drain_seconds)
            report = runner.run()
        self.stopped_now_by = runner.stopped_now_by
        return report

    @property
    def _is_in_cloud(self) -> bool:
        """Return whether jobs may have task tokens, whose results must reach Step Functions."""
        is_sqs = parse_url(self.queue, QUEUES).scheme == "sqs"
        return is_sqs or find_store_file(self.store) is None

    def _build_engine(
        self, jobs: "JobStateRepository", callbacks: "StepFunctions | None", events: Events
    ) -> "JobEngine":
        return build_export_engine(
            jobs,
            self.to,
            settings=self.settings,
            heartbeats=read_heartbeat_settings(os.environ),
            manifests=self.manifests,
            callbacks=callbacks,
            events=events,
        )

    def _build_worker(
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
            # Longer than the jobs' drain, or the worker would end them while they drain.
            drain_seconds=self.settings.drain_seconds + _GIVE_BACK_SECONDS,
            events=queue.events,
        )

    def _choose_status(
        self,
        jobs: "JobStateRepository",
        engine: "JobEngine",
        events: Events,
        name: str,
        log_format: str | None,
    ) -> LiveStatus:
        if not subscribe_log(events, log_format):
            return NoStatus()
        monitor = ExportMonitor(jobs, engine, lambda: engine.dispatcher.running)
        events.subscribe(monitor)
        return LiveView(monitor, f"{name} to {self.to}", many=True)


class RunnableEngine(RunnableWorker):
    """A worker whose engine is started before it and stopped after it."""

    def __init__(
        self, engine: "JobEngine", worker: "Worker[Any]", counts: EventCounts, until_empty: bool
    ) -> None:
        super().__init__(worker, counts, until_empty)
        self._engine = engine

    def run(self) -> WorkerReport:
        """Run the engine and the worker to the worker's end."""
        with self._engine:
            return super().run()
