"""`holdfast chat work`: answer messages until it is stopped or nothing waits."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson, make_concurrency_option
from holdfast.cli.durations import parse_duration
from holdfast.cli.errors import UsageError
from holdfast.cli.observability import LogFormat, MetricsHost, MetricsPort, serve_metrics_while
from holdfast.cli.work import print_report
from holdfast.conversations.model import Channel

if TYPE_CHECKING:
    from holdfast.conversations.policy import ConversationPolicy

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
        typer.Option(
            parser=parse_duration,
            metavar="DURATION",
            help="Time for running batches to finish after Ctrl-C.",
            show_default="the timeouts of writer and sender",
        ),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when no message waits for a reply.")
    ] = False,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
    log_format: LogFormat = None,
    as_json: AsJson = False,
) -> None:
    """Answer customers' messages. Ctrl-C lets batches finish; Ctrl-C again stops now."""
    from holdfast.bootstrap.chats import build_chat
    from holdfast.cli.chat.service import ChatService
    from holdfast.core.events import Events

    channels = _parse_channels(channel)
    events = Events()
    with (
        serve_metrics_while(events, metrics_port, metrics_host),
        build_chat(os.environ, events=events) as app,
    ):
        service = ChatService(
            app,
            channels,
            app.settings.inbound_queue is not None if inbound is None else inbound,
            concurrency,
            _compute_drain(app.settings.policy) if drain is None else drain,
        )
        report = service.run(events, log_format, until_idle=until_idle)
    print_report(report, as_json)
    if service.stopped_now_by:
        raise typer.Exit(128 + service.stopped_now_by)


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
