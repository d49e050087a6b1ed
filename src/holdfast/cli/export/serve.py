"""`holdfast export serve`: the service that takes export jobs from a queue.

stop   jobs drain, or are given back ─▶ pool ─▶ reconciler ─▶ heartbeats, last
"""

from typing import Annotated

import typer

from holdfast.cli.arguments import QUEUE_HELP, AsJson, make_concurrency_option, resolve_queue
from holdfast.cli.durations import parse_duration
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
    check_target,
    resolve_settings,
    resolve_store,
)
from holdfast.cli.observability import LogFormat, MetricsHost, MetricsPort, serve_metrics_while
from holdfast.cli.work import print_report


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
    concurrency: Annotated[int, make_concurrency_option("Jobs handled at the same time.")] = 8,
    drain: Annotated[
        float | None,
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Time for running downloads to finish after Ctrl-C (30s).",
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
        bool, typer.Option("--until-empty", help="Exit when no job is left.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    log_format: LogFormat = None,
    as_json: AsJson = False,
) -> None:
    """Take export jobs from a queue. Ctrl-C drains; Ctrl-C again stops now."""
    from holdfast.cli.export.service import ExportService
    from holdfast.core.events import Events

    check_target(to)
    settings = resolve_settings(
        worker_pool_size=workers,
        downloads=downloads,
        per_host=per_host,
        allow_private=allow_private,
        allow_hosts=allow_host,
        max_bytes=max_size,
        download_attempts=attempts,
        durable=durable,
    )
    if drain is not None:  # 0 means at once; it does not mean the default
        settings = settings.model_copy(update={"drain_seconds": drain})
    service = ExportService(
        resolve_queue(queue), to, resolve_store(jobs), manifests, concurrency, settings
    )
    events = Events()
    with serve_metrics_while(events, metrics_port, metrics_host):
        report = service.run(events, log_format, until_empty=until_empty)
    print_report(report, as_json)
    if service.stopped_now_by:
        raise typer.Exit(128 + service.stopped_now_by)
