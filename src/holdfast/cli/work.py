"""`holdfast work`: run a worker until it is stopped or the queue is empty."""

import os
import shlex
import sys
from functools import partial
from typing import Annotated, Any

from holdfast.app.application import Holdfast
from holdfast.app.task import Task
from holdfast.cli.arguments import (
    CONCURRENCY,
    QUEUE_HELP,
    find_new_queue,
    report_created,
    resolve_queue,
    split_queue_and_one,
)
from holdfast.cli.console import UsageError
from holdfast.cli.foreground import (
    GIVEN_BACK,
    LEFT_TO_EXPIRE,
    EndOptions,
    ForegroundRunner,
    ServiceOptions,
)
from holdfast.cli.live_view import EventCounts
from holdfast.events import Events
from holdfast.queue.manager import QueueManager
from holdfast.queues.opening import open_queue
from holdfast.urls import QUEUES
from holdfast.worker.handler import Handler, find_message_model, load_handler, load_object
from holdfast.worker.worker import Prefetch, Worker


def work(
    words: Annotated[
        list[str] | None,
        "<QUEUE MODULE:HANDLER>",
        f"{QUEUE_HELP} Then the function that handles a message, or a Holdfast app with its "
        "own queue; both are searched for in the current folder first.",
    ] = None,
    concurrency: Annotated[int, *CONCURRENCY, "Messages handled at the same time."] = 1,
    prefetch: Annotated[
        str,
        "auto|COUNT",
        "Messages claimed before they can be started, if handlers are fast; 0 for none.",
    ] = "auto",
    isolation: Annotated[
        str | None, "thread|process|async", "Where handlers run; in threads by default."
    ] = None,
    lease: Annotated[
        float | None, "Lease of a message; it is renewed while the handler runs."
    ] = None,
    stall: Annotated[float | None, "Maximum time between two calls of ctx.beat()."] = None,
    timeout: Annotated[float | None, "Maximum time of one attempt."] = None,
    drain: Annotated[float, "Time for running work to finish after Ctrl-C."] = 30.0,
    max_attempts: Annotated[int | None, "Attempts before a message is dead-lettered."] = None,
    backoff: Annotated[
        str | None,
        "BACKOFF",
        "Delay before a failed message is retried: the first, its growth and its maximum, as "
        "in '5s,x2,max 10m'.",
    ] = None,
    tracebacks: Annotated[
        bool,
        "--tracebacks/--no-tracebacks",
        "Log the traceback of a handler that fails; the text of its exception may quote the "
        "message.",
    ] = True,
    *,
    ending: EndOptions,
    service: ServiceOptions,
) -> None:
    """Handle messages. Ctrl-C lets running work finish; Ctrl-C again stops now."""
    url, target = _load_target(words)
    new = find_new_queue(url)
    events = Events(counts := EventCounts())
    of_queue = _drop_none(lease_seconds=lease, max_attempts=max_attempts, backoff=backoff)
    of_task = _drop_none(isolation=isolation, stall_seconds=stall, timeout_seconds=timeout)
    of_worker: dict[str, Any] = {
        "concurrency": concurrency,
        "prefetch": _parse_prefetch(prefetch),
        "drain_seconds": drain,
        "events": events,
    }
    with service.attach_subscribers(events):
        queue: QueueManager[Any]
        if isinstance(target, Holdfast):
            _refuse_options_of_tasks(of_task)
            queue = target.open_queue(url, events=events, **of_queue)
        else:
            queue = open_queue(url, find_message_model(target), events=events, **of_queue)
        with queue:
            worker = (
                target.make_worker(queue, **of_worker)
                if isinstance(target, Holdfast)
                else Worker(queue, target, **of_task, **of_worker)
            )
            report_created(new)
            explain = f"holdfast explain {shlex.quote(url)}"
            runner = ForegroundRunner(
                partial(ending.run, worker),
                worker.stop,
                worker.stop_now,
                lambda: counts.running,
                drain,
                LEFT_TO_EXPIRE if worker.isolation == "thread" else GIVEN_BACK,
            )
            service.run(
                runner,
                [queue],
                events,
                lambda: counts.show(queue.name),
                ending,
                tracebacks=tracebacks,
                explain=explain if "find" in queue.capabilities else None,
            )


def _drop_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _load_target(words: list[str] | None) -> tuple[str, Holdfast | Handler]:
    """Return the queue, and the handler or app in the working directory or a package."""
    # The path of a console script begins with its own folder, not the working directory.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    url: str | None = None
    if words and len(words) == 1 and words[0].partition(":")[0] not in QUEUES.schemes:
        path = words[0]  # an app may have its own queue
    else:
        url, path = split_queue_and_one(words, "MODULE:HANDLER", "work enrich tasks:handle")
    target = load_object(path)
    if isinstance(target, Holdfast):
        target.check_tasks()
        return url or target.url, target
    if isinstance(target, Task):
        raise UsageError(f"{path} is a task: name its app, as in {path.partition(':')[0]}:app")
    return url or resolve_queue(), load_handler(path)


def _refuse_options_of_tasks(given: dict[str, Any]) -> None:
    for name in sorted(given):
        option = name.removesuffix("_seconds")
        raise UsageError(
            f"each task of an app has its own --{option}: write it as in "
            f"@app.task({option}={given[name]!r})"
        )


def _parse_prefetch(text: str) -> Prefetch:
    """Return the value of --prefetch. Raises UsageError if it is no number of messages."""
    if text == "auto":
        return "auto"
    if text.isascii() and text.isdecimal():
        return int(text)
    raise UsageError(f"--prefetch must be auto, or 0 or more messages; got {text!r}")
