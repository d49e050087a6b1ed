"""Log lines and metrics of the commands that work in the foreground."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from holdfast.cli.console import info, is_terminal
from holdfast.cli.errors import UsageError

if TYPE_CHECKING:
    from holdfast.core.events import Events

MetricsPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics on this port.")
]
MetricsHost = Annotated[str, typer.Option(help="Address to serve the metrics on.")]
LogFormat = Annotated[
    str | None, typer.Option(metavar="text|json", help="Log a line for each event.")
]


@contextmanager
def serve_metrics_while(events: "Events", port: int | None, host: str) -> Iterator[None]:
    """Serve metrics until the block is left, if there is a port."""
    if port is None:
        yield
        return
    from holdfast.bootstrap import serve_metrics

    server = serve_metrics(port, host)
    events.subscribe(server.subscriber)
    info(f"metrics at http://{host}:{server.port}/metrics")
    try:
        yield
    finally:
        server.close()


def subscribe_log(events: "Events", style: str | None) -> bool:
    """Log events to stderr, and return whether a live view can be shown.

    On a terminal without a chosen style, only warnings and errors are logged and the result
    is True. Otherwise every event is logged.
    """
    from holdfast.bootstrap import log_events

    if style not in (None, "text", "json"):
        raise UsageError(f"--log-format must be text or json; got {style!r}")
    live = is_terminal() and style is None
    log_style = cast(Literal["text", "json"], style or "text")
    events.subscribe(log_events(info, log_style, min_level="warning" if live else "info"))
    return live
