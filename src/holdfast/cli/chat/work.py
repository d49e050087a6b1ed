"""`holdfast chat work`: answer what customers write, until it is stopped or nothing waits."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.arguments import AsJson, concurrency_option
from holdfast.cli.durations import seconds
from holdfast.cli.errors import UsageError
from holdfast.cli.watching import LogFormat, MetricsHost, MetricsPort, metrics
from holdfast.cli.work import answer_report
from holdfast.conversations.model import Channel

if TYPE_CHECKING:
    from holdfast.conversations.policy import ConversationPolicy

_MARGIN_SECONDS = 5.0


def work(
    channel: Annotated[
        list[str] | None,
        typer.Option(metavar="whatsapp|sms|email", help="Only this one; may be repeated."),
    ] = None,
    inbound: Annotated[
        bool | None,
        typer.Option(
            "--inbound/--no-inbound",
            help="Also stage what comes through HOLDFAST_CHAT_INBOUND_QUEUE.",
            show_default="when it is set",
        ),
    ] = None,
    concurrency: Annotated[int, concurrency_option("Batches at a time, per channel.")] = 4,
    drain: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="DURATION",
            help="How long a batch may finish on Ctrl-C.",
            show_default="what a writer and a sender may take",
        ),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when nothing waits for an answer.")
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

    chosen = _channels(channel)
    events = Events()
    with (
        metrics(events, metrics_port, metrics_host),
        build_chat(os.environ, events=events) as app,
    ):
        service = ChatService(
            app,
            chosen,
            app.settings.inbound_queue is not None if inbound is None else inbound,
            concurrency,
            _enough(app.settings.terms) if drain is None else drain,
        )
        report = service.run(events, log_format, until_idle=until_idle)
    answer_report(report, as_json)
    if service.stopped_now_by:
        raise typer.Exit(128 + service.stopped_now_by)


def _channels(names: list[str] | None) -> list[Channel]:
    if not names:
        return list(Channel)
    try:
        return list(dict.fromkeys(Channel(name.lower()) for name in names))
    except ValueError:
        raise UsageError(f"--channel: it is one of {', '.join(Channel)}") from None


def _enough(terms: "ConversationPolicy") -> float:
    """What a reply under way needs at most: one cut off is in doubt, and parked."""
    return terms.writer_seconds + terms.sender_seconds + _MARGIN_SECONDS
