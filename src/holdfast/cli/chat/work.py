"""`holdfast chat work`: answer messages until it is stopped or nothing waits."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.arguments import make_concurrency_option, make_duration_option
from holdfast.cli.errors import UsageError
from holdfast.cli.foreground import (
    ForegroundRunner,
    Runnable,
    ServiceOptions,
    show_status_line,
)
from holdfast.cli.live_view import EventCounts
from holdfast.conversations.model import Channel

if TYPE_CHECKING:
    from holdfast.bootstrap.chats import ChatApp
    from holdfast.conversations.policy import ConversationPolicy
    from holdfast.core.queue.manager import QueueManager
    from holdfast.core.worker.handler import Handler
    from holdfast.core.worker.worker import Worker

_MARGIN_SECONDS = 5.0


def work(
    channel: Annotated[
        list[str] | None,
        typer.Option(
            metavar="whatsapp|sms|email", help="Handle only this channel; may be repeated."
        ),
    ] = None,
    inbound: Annotated[
        bool | None,
        typer.Option(
            "--inbound/--no-inbound",
            help="Also stage the messages of HOLDFAST_CHAT_INBOUND_QUEUE.",
            show_default="if it is set",
        ),
    ] = None,
    concurrency: Annotated[
        int, make_concurrency_option("Batches handled at the same time, per channel.")
    ] = 4,
    drain: Annotated[
        float | None,
        make_duration_option(
            "Time for running batches to finish after Ctrl-C.",
            show_default="the timeouts of writer and sender",
        ),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when no message waits for a reply.")
    ] = False,
    *,
    service: ServiceOptions,
) -> None:
    """Answer customers' messages. Ctrl-C lets batches finish; Ctrl-C again stops now."""
    from holdfast.bootstrap.chats import build_chat
    from holdfast.cli.chat.service import ChatWorkers
    from holdfast.core.events import Events

    channels = _parse_channels(channel)
    counts, events = EventCounts(), Events()
    events.subscribe(counts)
    with service.serve_metrics(events), build_chat(os.environ, events=events) as app:
        if inbound is None:
            inbound = app.settings.inbound_queue is not None
        if drain is None:
            drain = _compute_drain(app.settings.policy)
        queues = _collect_queues(app, channels, inbound)
        workers = [_build_worker(app, *each, concurrency, drain) for each in queues.items()]
        name = f"chat {' '.join(channels)}"
        status = service.choose_status(events, lambda: show_status_line(name, counts))
        chat = ChatWorkers(app, workers, list(queues) if until_idle else [], counts, events)
        runnable = Runnable(chat.run, chat.stop, chat.stop_now, lambda: counts.running)
        runner = ForegroundRunner(runnable, status, drain)
        report = runner.run()
    service.report(runner, report)


def _collect_queues(
    app: "ChatApp", channels: list[Channel], inbound: bool
) -> "dict[QueueManager[Any], Handler]":
    """Return each queue once, even if channels share it, with its handler."""
    handlers: dict[QueueManager[Any], Handler] = {}
    for channel in channels:
        handlers[app.queues[channel]] = app.processor
    if inbound:
        handlers[app.queues.inbound()] = app.stager
    return handlers


def _build_worker(
    app: "ChatApp",
    queue: "QueueManager[Any]",
    handler: "Handler",
    concurrency: int,
    drain_seconds: float,
) -> "Worker[Any]":
    from holdfast.core.worker.worker import Worker

    return Worker(
        queue,
        handler,
        concurrency=concurrency,
        isolation="thread",
        drain_seconds=drain_seconds,
        keeper=app.keeper,
        events=queue.events,
    )


def _parse_channels(names: list[str] | None) -> list[Channel]:
    if not names:
        return list(Channel)
    try:
        return list(dict.fromkeys(Channel(name.lower()) for name in names))
    except ValueError:
        raise UsageError(
            f"--channel must be one of {', '.join(Channel)}; got {', '.join(names)}"
        ) from None


def _compute_drain(policy: "ConversationPolicy") -> float:
    """Return the maximum time of a running reply.

    If a reply is cut off, it is unknown whether it was sent, and its batch is parked.
    """
    return policy.writer_seconds + policy.sender_seconds + _MARGIN_SECONDS
