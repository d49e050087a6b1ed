"""What commands that work in the foreground show of it: log lines and metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from holdfast.cli.console import info, is_terminal
from holdfast.cli.errors import UsageError

if TYPE_CHECKING:
    from holdfast.core.events import Events

MetricsPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics there.")
]
MetricsHost = Annotated[str, typer.Option(help="Address for the metrics.")]
LogFormat = Annotated[
    str | None, typer.Option(metavar="text|json", help="A line for each event.")
]


@contextmanager
def metrics(events: "Events", port: int | None, host: str) -> Iterator[None]:
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


def log_lines(events: "Events", style: str | None) -> bool:
    """On a terminal a line for what is out of the ordinary, and True: there is room for a
    live view; else, or when asked for, a line for every event."""
    from holdfast.bootstrap import log_events

    if style not in (None, "text", "json"):
        raise UsageError(f"--log-format {style!r}: it is text or json")
    live = is_terminal() and style is None
    chosen = cast(Literal["text", "json"], style or "text")
    events.subscribe(log_events(info, chosen, at_least="warning" if live else "info"))
    return live
