"""`holdfast work`: run a worker in the foreground until it is stopped or the queue is empty."""

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from holdfast.cli.arguments import QUEUE_HELP, AsJson, concurrency_option, queue_and_rest
from holdfast.cli.console import print_json, print_result
from holdfast.cli.durations import seconds
from holdfast.cli.errors import UsageError
from holdfast.cli.foreground import ForegroundRunner
from holdfast.cli.status_line import EventCounts, NoStatus, StatusLine
from holdfast.cli.watching import LogFormat, MetricsHost, MetricsPort, log_lines, metrics

if TYPE_CHECKING:
    from holdfast.core.worker.worker import Isolation, Worker, WorkerReport


def _duration(text: str) -> Any:
    return typer.Option(parser=seconds, metavar="DURATION", help=text)


def work(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE MODULE:HANDLER",
            help=f"{QUEUE_HELP} Then the function that handles a message; the current "
            "folder is looked in first.",
        ),
    ] = None,
    concurrency: Annotated[int, concurrency_option("Messages at a time.")] = 1,
    isolation: Annotated[
        str, typer.Option(metavar="thread|process|async", help="Where handlers run.")
    ] = "thread",
    lease: Annotated[float | None, _duration("How long a message is held at a time.")] = None,
    stall: Annotated[
        float | None, _duration("The longest a handler may go without ctx.beat().")
    ] = None,
    timeout: Annotated[float | None, _duration("The longest one attempt may take.")] = None,
    drain: Annotated[float, _duration("How long running work may finish on Ctrl-C.")] = 30.0,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, help="Then the message is a dead letter.")
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing is left to do.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    log_format: LogFormat = None,
    as_json: AsJson = False,
) -> None:
    """Handle messages. Ctrl-C lets running work finish; Ctrl-C again stops now."""
    from holdfast.bootstrap import open_queue
    from holdfast.core.events import Events
    from holdfast.core.worker.handler import load_handler, message_model
    from holdfast.core.worker.worker import Worker

    queue_url, path = _queue_and_handler(words)
    _put_here_on_path()
    handler = load_handler(path)
    tally, events = EventCounts(), Events()
    events.subscribe(tally)
    settings = {"lease_seconds": lease, "max_attempts": max_attempts}
    given: dict[str, Any] = {
        name: value for name, value in settings.items() if value is not None
    }
    with (
        metrics(events, metrics_port, metrics_host),
        open_queue(queue_url, message_model(handler), events=events, **given) as queue,
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
        screen = StatusLine(queue.name, tally) if log_lines(events, log_format) else NoStatus()
        shift = ForegroundRunner(RunnableWorker(worker, tally, until_empty), screen, drain)
        report = shift.run()
    answer_report(report, as_json)
    if shift.stopped_now_by:
        raise typer.Exit(128 + shift.stopped_now_by)


def _queue_and_handler(words: list[str] | None) -> tuple[str, str]:
    queue, rest = queue_and_rest(words, wanted=1)
    if len(rest) != 1:
        raise UsageError(
            "one MODULE:HANDLER is needed, as in `holdfast work enrich tasks:handle`"
        )
    return queue, rest[0]


def _put_here_on_path() -> None:
    # A console script's path begins with its own folder, not with where one stands.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def answer_report(report: "WorkerReport", as_json: bool) -> None:
    counts = asdict(report)
    if as_json:
        print_json(counts)
    else:
        print_result(", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in counts.items()))


class RunnableWorker:
    """A worker, as a shift sees it."""

    def __init__(self, worker: "Worker[Any]", tally: EventCounts, until_empty: bool) -> None:
        self._worker, self._tally, self._until_empty = worker, tally, until_empty
        self.stop, self.stop_now = worker.stop, worker.stop_now

    @property
    def running(self) -> int:
        return self._tally.running

    def run(self) -> "WorkerReport":
        return self._worker.run(until_empty=self._until_empty)
