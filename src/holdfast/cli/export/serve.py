"""`holdfast export serve`: the service that takes export jobs from a queue.

stop   jobs drain, or are given back ─▶ pool ─▶ reconciler ─▶ heartbeats, last of all
"""

from typing import Annotated

import typer

from holdfast.cli.arguments import QUEUE_HELP, AsJson, concurrency_option, default_queue
from holdfast.cli.durations import seconds
from holdfast.cli.export.options import (
    AllowHost,
    AllowPrivate,
    Attempts,
    Downloads,
    Durable,
    MaxSize,
    PerHost,
    Store,
    To,
    Workers,
    checked_target,
    settings_of,
    store_or_default,
)
from holdfast.cli.watching import LogFormat, MetricsHost, MetricsPort, metrics
from holdfast.cli.work import answer_report


def serve(
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE", help=QUEUE_HELP)] = None,
    *,
    to: To,
    jobs: Store = None,
    manifests: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|s3://…",
            help="Where EXPORT_ID.jsonl or .txt lists the files of jobs without tasks.",
        ),
    ] = None,
    concurrency: Annotated[int, concurrency_option("Jobs at a time.")] = 8,
    drain: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="DURATION",
            help="How long running downloads may finish on Ctrl-C (30s).",
        ),
    ] = None,
    workers: Workers = None,
    downloads: Downloads = None,
    per_host: PerHost = None,
    allow_private: AllowPrivate = False,
    allow_host: AllowHost = None,
    max_size: MaxSize = None,
    attempts: Attempts = None,
    durable: Durable = False,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when no job is left.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    log_format: LogFormat = None,
    as_json: AsJson = False,
) -> None:
    """Take export jobs from a queue. Ctrl-C drains; Ctrl-C again stops now."""
    from holdfast.cli.export.service import ExportService
    from holdfast.core.events import Events

    checked_target(to)
    settings = settings_of(
        worker_pool_size=workers,
        downloads=downloads,
        per_host=per_host,
        allow_private=allow_private,
        allow_hosts=allow_host,
        max_bytes=max_size,
        download_attempts=attempts,
        durable=durable,
    )
    if drain is not None:  # 0 too: it means at once, not "as ever"
        settings = settings.model_copy(update={"drain_seconds": drain})
    service = ExportService(
        default_queue(queue), to, store_or_default(jobs), manifests, concurrency, settings
    )
    events = Events()
    with metrics(events, metrics_port, metrics_host):
        report = service.run(events, log_format, until_empty=until_empty)
    answer_report(report, as_json)
    if service.stopped_now_by:
        raise typer.Exit(128 + service.stopped_now_by)
