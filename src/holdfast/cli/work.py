"""`holdfast work`: run a worker until it is stopped or the queue is empty."""

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from holdfast.cli.arguments import (
    QUEUE_HELP,
    find_new_queue,
    make_concurrency_option,
    make_duration_option,
    report_created,
    split_queue_and_one,
)
from holdfast.cli.foreground import (
    EndOptions,
    ForegroundRunner,
    ServiceOptions,
    make_runnable,
    show_status_line,
)
from holdfast.cli.live_view import EventCounts

if TYPE_CHECKING:
    from holdfast.core.worker.worker import Isolation


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
        make_duration_option("Lease of a message; it is renewed while the handler runs."),
    ] = None,
    stall: Annotated[
        float | None, make_duration_option("Maximum time between two calls of ctx.beat().")
    ] = None,
    timeout: Annotated[
        float | None, make_duration_option("Maximum time of one attempt.")
    ] = None,
    drain: Annotated[
        float, make_duration_option("Time for running work to finish after Ctrl-C.")
    ] = 30.0,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, help="Attempts before a message is dead-lettered.")
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(
            metavar="BACKOFF",
            help="Delay before a failed message is retried: the first, its growth and its "
            "maximum, as in '5s,x2,max 10m'.",
        ),
    ] = None,
    tracebacks: Annotated[
        bool,
        typer.Option(
            "--tracebacks/--no-tracebacks",
            help="Log the traceback of a handler that fails; the text of its exception may "
            "quote the message.",
        ),
    ] = True,
    *,
    ending: EndOptions,
    service: ServiceOptions,
) -> None:
    """Handle messages. Ctrl-C lets running work finish; Ctrl-C again stops now."""
    from holdfast.bootstrap import open_queue
    from holdfast.core.events import Events
    from holdfast.core.worker.handler import find_message_model, load_handler
    from holdfast.core.worker.worker import Worker

    queue_url, path = split_queue_and_one(words, "MODULE:HANDLER", "work enrich tasks:handle")
    _add_working_directory()
    handler = load_handler(path)
    new = find_new_queue(queue_url)
    events = Events(counts := EventCounts())
    settings = {"lease_seconds": lease, "max_attempts": max_attempts, "backoff": backoff}
    given: Any = {name: value for name, value in settings.items() if value is not None}
    with (
        service.serve_metrics(events),
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
        explain = f"holdfast explain {shlex.quote(queue_url)}"
        status = service.choose_status(
            events,
            lambda: show_status_line(queue.name, counts),
            tracebacks=tracebacks,
            explain=explain if "find" in queue.capabilities else None,
        )
        runner = ForegroundRunner(make_runnable(worker, counts, ending), status, drain)
        report_created(new)
        report = runner.run()
        if not runner.first_signal:
            ending.report_held(queue)
    service.report(runner, report)


def _add_working_directory() -> None:
    # The path of a console script begins with its own folder, not the working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
