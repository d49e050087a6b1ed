"""`holdfast work`: run a worker until it is stopped or the queue is empty."""

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from holdfast.cli.arguments import (
    QUEUE_HELP,
    AsJson,
    make_concurrency_option,
    split_queue_and_rest,
)
from holdfast.cli.console import print_json, print_result
from holdfast.cli.durations import parse_duration
from holdfast.cli.errors import UsageError
from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.observability import (
    LogFormat,
    MetricsHost,
    MetricsPort,
    serve_metrics_while,
    subscribe_log,
)
from holdfast.cli.status_line import EventCounts, NoStatus, StatusLine

if TYPE_CHECKING:
    from holdfast.core.worker.worker import Isolation, Worker, WorkerReport


def _make_duration_option(text: str) -> Any:
    return typer.Option(parser=parse_duration, metavar="DURATION", help=text)


def work(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE MODULE:HANDLER",
            help=f"{QUEUE_HELP} Then the function that handles a message, which is "
            "searched for in the current folder first.",
        ),
    ] = None,
    concurrency: Annotated[
        int, make_concurrency_option("Messages handled at the same time.")
    ] = 1,
    isolation: Annotated[
        str, typer.Option(metavar="thread|process|async", help="Where handlers run.")
    ] = "thread",
    lease: Annotated[
        float | None,
        _make_duration_option("Lease of a message; it is renewed while the handler runs."),
    ] = None,
    stall: Annotated[
        float | None, _make_duration_option("Maximum time between two calls of ctx.beat().")
    ] = None,
    timeout: Annotated[
        float | None, _make_duration_option("Maximum time of one attempt.")
    ] = None,
    drain: Annotated[
        float, _make_duration_option("Time for running work to finish after Ctrl-C.")
    ] = 30.0,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, help="Attempts before a message is dead-lettered.")
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="Exit when the queue is empty.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    log_format: LogFormat = None,
    as_json: AsJson = False,
) -> None:
    """Handle messages. Ctrl-C lets running work finish; Ctrl-C again stops now."""
    from holdfast.bootstrap import open_queue
    from holdfast.core.events import Events
    from holdfast.core.worker.handler import find_message_model, load_handler
    from holdfast.core.worker.worker import Worker

    queue_url, path = _split_queue_and_handler(words)
    _add_working_directory()
    handler = load_handler(path)
    counts, events = EventCounts(), Events()
    events.subscribe(counts)
    settings = {"lease_seconds": lease, "max_attempts": max_attempts}
    given: dict[str, Any] = {
        name: value for name, value in settings.items() if value is not None
    }
    with (
        serve_metrics_while(events, metrics_port, metrics_host),
        open_queue(queue_url, find_message_model(handler), events=events, **given) as queue,
    ):
        worker = Worker(
            queue,
            handler,
            concurrency=concurrency,
            isolation=cast("Isolation", isolation),
            stall_seconds=stall,
            timeout_seconds=timeout,
            drain_seconds=drain,
            events=events,
        )
        status = (
            StatusLine(queue.name, counts) if subscribe_log(events, log_format) else NoStatus()
        )
        runner = ForegroundRunner(RunnableWorker(worker, counts, until_empty), status, drain)
        report = runner.run()
    print_report(report, as_json)
    if runner.stopped_now_by:
        raise typer.Exit(128 + runner.stopped_now_by)


def _split_queue_and_handler(words: list[str] | None) -> tuple[str, str]:
    queue, rest = split_queue_and_rest(words, min_rest=1)
    if len(rest) != 1:
        raise UsageError(
            f"one MODULE:HANDLER is needed, got {len(rest)}; write it as in "
            "`holdfast work enrich tasks:handle`"
        )
    return queue, rest[0]


def _add_working_directory() -> None:
    # The path of a console script begins with its own folder, not the working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def print_report(report: "WorkerReport", as_json: bool) -> None:
    """Print the counts of a worker's report, as a line or as JSON."""
    counts = asdict(report)
    if as_json:
        print_json(counts)
    else:
        print_result(", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in counts.items()))


class RunnableWorker:
    """A worker that ForegroundRunner can run."""

    def __init__(self, worker: "Worker[Any]", counts: EventCounts, until_empty: bool) -> None:
        self._worker, self._counts, self._until_empty = worker, counts, until_empty
        self.stop, self.stop_now = worker.stop, worker.stop_now

    @property
    def running(self) -> int:
        """Return the number of running messages."""
        return self._counts.running

    def run(self) -> "WorkerReport":
        """Run the worker to its end."""
        return self._worker.run(until_empty=self._until_empty)
