"""`holdfast export serve`: the service that takes export jobs from a queue.

stop   jobs drain, or are given back ─▶ pool ─▶ reconciler ─▶ heartbeats, last
"""

import os
from typing import Annotated

from holdfast.cli.arguments import (
    CONCURRENCY,
    Queue,
    find_new_queue,
    report_created,
    resolve_queue,
)
from holdfast.cli.foreground import EndOptions, ForegroundRunner, ServiceOptions
from holdfast.cli.live_view import EventCounts, LiveView
from holdfast.events import Events
from holdfast.exports.building import (
    build_export_engine,
    open_jobs,
    open_step_functions,
    require_downloads,
)
from holdfast.exports.commands.inspect import (
    DownloadOptions,
    Store,
    To,
    check_target,
    require_usable_target,
)
from holdfast.exports.commands.live_view import ExportMonitor
from holdfast.exports.consumer import ExportJobConsumer
from holdfast.exports.settings import HeartbeatSettings, find_job_store
from holdfast.queue.message import AnyMessage
from holdfast.queues.opening import open_queue
from holdfast.settings import read_settings
from holdfast.urls import QUEUES, find_store_file, parse_url
from holdfast.worker.settle import WorkerReport
from holdfast.worker.worker import Worker

# The time that a job needs after its downloads have drained, to count them and be given back.
_GIVE_BACK_SECONDS = 10.0


def serve(
    queue: Queue = None,
    *,
    to: To,
    jobs: Store = None,
    manifests: Annotated[
        str | None,
        "FOLDER|s3://…",
        "Where EXPORT_ID.jsonl or .txt lists the files of jobs without tasks.",
    ] = None,
    concurrency: Annotated[int, *CONCURRENCY, "Jobs handled at the same time."] = 200,
    drain: Annotated[
        float | None, "Time for running downloads to finish after Ctrl-C (30s)."
    ] = None,
    downloads: DownloadOptions,
    ending: EndOptions,
    service: ServiceOptions,
) -> None:
    """Take export jobs from a queue. Ctrl-C drains; Ctrl-C again stops now."""
    check_target(to)
    settings = downloads.resolve_settings()
    require_downloads()
    require_usable_target(to)
    if drain is not None:  # 0 means at once; it does not mean the default
        settings = settings.model_copy(update={"drain_seconds": drain})
    url, store = resolve_queue(queue), find_job_store(os.environ, jobs)
    callbacks = open_step_functions(needed=_is_in_cloud(url, store))
    new = find_new_queue(url)
    events = Events(counts := EventCounts())
    with (
        service.attach_subscribers(events),
        open_queue(url, AnyMessage, events=events) as messages,
        open_jobs(store) as repository,
    ):
        repository.find_by_id("holdfast")  # fail now if the store cannot be used
        engine = build_export_engine(
            repository,
            to,
            settings=settings,
            heartbeats=read_settings(HeartbeatSettings, os.environ),
            manifests=manifests,
            callbacks=callbacks,
            events=events,
        )
        worker = Worker(
            messages,
            ExportJobConsumer(
                engine.runner, engine.tracker, callbacks, max_attempts=messages.max_attempts
            ),
            concurrency=concurrency,
            isolation="thread",
            prefetch=0,  # a refused job says nothing about the hours of the next one
            # Longer than the jobs' drain, or the worker would end them while they drain.
            drain_seconds=settings.drain_seconds + _GIVE_BACK_SECONDS,
            events=events,
        )

        def make_view() -> LiveView:
            monitor = ExportMonitor(repository, engine, lambda: engine.dispatcher.running)
            events.subscribe(monitor)
            return monitor.show(f"{messages.name} to {to}", many=True)

        def run() -> WorkerReport:
            with engine:  # which starts before the worker and stops after it
                return ending.run(worker)

        def stop_now() -> None:
            # The threads of the jobs cannot be killed, so they are told to give the jobs back.
            engine.dispatcher.leave_now()
            worker.stop_now(_GIVE_BACK_SECONDS)

        runner = ForegroundRunner(
            run, worker.stop, stop_now, lambda: counts.running, settings.drain_seconds
        )
        report_created(new)
        service.run(runner, [messages], events, make_view, ending)


def _is_in_cloud(queue: str, store: str) -> bool:
    """Return whether jobs may have task tokens, whose results must reach Step Functions."""
    is_sqs = parse_url(queue, QUEUES).scheme == "sqs"
    return is_sqs or find_store_file(store) is None
