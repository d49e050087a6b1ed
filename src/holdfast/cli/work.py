"""`holdfast work`: run a worker until it is stopped or the queue is empty."""

import os
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import (
    PREFETCH,
    QUEUE_HELP,
    find_new_queue,
    make_concurrency_option,
    make_duration_option,
    parse_prefetch,
    report_created,
    resolve_queue,
    split_queue_and_one,
)
from holdfast.cli.errors import UsageError
from holdfast.cli.foreground import (
    EndOptions,
    ForegroundRunner,
    ServiceOptions,
    make_runnable,
    show_status_line,
)
from holdfast.cli.live_view import EventCounts

if TYPE_CHECKING:
    from holdfast.app.application import Holdfast
    from holdfast.events import Events
    from holdfast.queue.manager import QueueManager
    from holdfast.worker.handler import Handler
    from holdfast.worker.worker import Worker


def work(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUE MODULE:HANDLER",
            help=f"{QUEUE_HELP} Then the function that handles a message, or a Holdfast app "
            "with its own queue; both are searched for in the current folder first.",
        ),
    ] = None,
    concurrency: Annotated[
        int, make_concurrency_option("Messages handled at the same time.")
    ] = 1,
    prefetch: Annotated[str, PREFETCH] = "auto",
    isolation: Annotated[
        str | None,
        typer.Option(
            metavar="thread|process|async", help="Where handlers run; in threads by default."
        ),
    ] = None,
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
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Start again when a module changes, for development."),
    ] = False,
    *,
    ending: EndOptions,
    service: ServiceOptions,
) -> None:
    """Handle messages. Ctrl-C lets running work finish; Ctrl-C again stops now."""
    from holdfast.cli.reload import ChangeWatch, restart
    from holdfast.events import Events

    _add_working_directory()
    source = _load_source(words, reload)
    new = find_new_queue(source.url)
    events = Events(counts := EventCounts())
    of_handler: dict[str, Any] = {
        "isolation": isolation,
        "stall_seconds": stall,
        "timeout_seconds": timeout,
        "max_attempts": max_attempts,
        "backoff": backoff,
        "lease_seconds": lease,
    }
    given = {name: value for name, value in of_handler.items() if value is not None}
    with service.attach_subscribers(events), source.open(events, given) as queue:
        worker = source.make_worker(
            queue,
            given,
            concurrency=concurrency,
            prefetch=parse_prefetch(prefetch),
            drain_seconds=drain,
            events=events,
        )
        explain = f"holdfast explain {shlex.quote(source.url)}"
        status = service.choose_status(
            events,
            lambda: show_status_line(queue.name, counts),
            tracebacks=tracebacks,
            explain=explain if "find" in queue.capabilities else None,
        )
        runner = ForegroundRunner(make_runnable(worker, counts, ending), status, drain)
        report_created(new)
        watching: AbstractContextManager[ChangeWatch | None]
        watching = ChangeWatch(worker.stop) if reload else nullcontext()
        with watching as watch, service.sample_queues([queue], events):
            report = runner.run()
        if not runner.first_signal:
            ending.report_held(queue)
    if watch is not None and watch.has_changed and not runner.first_signal:
        restart()
    service.report(runner, report)


_OF_QUEUES = ("lease_seconds", "max_attempts", "backoff")


class _HandlerSource:
    """A queue and the function that handles its messages."""

    def __init__(self, url: str, handler: "Handler") -> None:
        self.url, self._handler = url, handler

    def open(self, events: "Events", given: dict[str, Any]) -> "QueueManager[Any]":
        """Open the queue with the settings of queues among the options."""
        from holdfast.queues.opening import open_queue
        from holdfast.worker.handler import find_message_model

        settings: Any = _pick(given, *_OF_QUEUES)
        return open_queue(
            self.url, find_message_model(self._handler), events=events, **settings
        )

    def make_worker(
        self, queue: "QueueManager[Any]", given: dict[str, Any], **options: Any
    ) -> "Worker[Any]":
        """Return a worker with the settings of workers among the options."""
        from holdfast.worker.worker import Worker

        settings = _pick(given, "isolation", "stall_seconds", "timeout_seconds")
        return Worker(queue, self._handler, **settings, **options)


class _AppSource:
    """A Holdfast app, with its own queue unless another is given."""

    def __init__(self, url: str | None, app: "Holdfast") -> None:
        self.url, self._app = url or app.url, app

    def open(self, events: "Events", given: dict[str, Any]) -> "QueueManager[Any]":
        """Open the queue. Raises UsageError for options that each task has of its own."""
        settings: Any = _pick(given, *_OF_QUEUES)
        if of_tasks := sorted(given.keys() - settings.keys()):
            option = of_tasks[0].removesuffix("_seconds")
            raise UsageError(
                f"each task of an app has its own --{option}: write it as in "
                f"@app.task({option}={given[of_tasks[0]]!r})"
            )
        return self._app.open_queue(self.url, events=events, **settings)

    def make_worker(
        self, queue: "QueueManager[Any]", given: dict[str, Any], **options: Any
    ) -> "Worker[Any]":
        """Return a worker for all tasks of the app."""
        return self._app.make_worker(queue, **options)


def _load_source(words: list[str] | None, reload: bool) -> _HandlerSource | _AppSource:
    """Return the handler with its queue, or the app.

    With `reload`, a module that cannot be imported, or an app that cannot run, is waited for
    until it changes.
    """
    from holdfast.app.application import Holdfast
    from holdfast.app.task import Task
    from holdfast.cli.reload import restart, wait_for_change
    from holdfast.errors import ConfigError, HandlerNotFound
    from holdfast.urls import QUEUES
    from holdfast.worker.handler import load_handler, load_object

    url: str | None = None
    if words and len(words) == 1 and words[0].partition(":")[0] not in QUEUES.schemes:
        path = words[0]  # an app may have its own queue
    else:
        url, path = split_queue_and_one(words, "MODULE:HANDLER", "work enrich tasks:handle")
    try:
        target = load_object(path)
        if isinstance(target, Holdfast):
            target.check_tasks()
            return _AppSource(url, target)
        if isinstance(target, Task):
            raise UsageError(
                f"{path} is a task: name its app, as in {path.partition(':')[0]}:app"
            )
        return _HandlerSource(url or resolve_queue(), load_handler(path))
    except (ConfigError, HandlerNotFound) as error:
        if not reload:
            raise
        wait_for_change(error)
        restart()


def _pick(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _add_working_directory() -> None:
    # The path of a console script begins with its own folder, not the working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
